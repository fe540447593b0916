"""How a game moves ratings: hand-checked numbers, what is rated and what is not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from pipeline.ratings import ModelRating, Ratings, placing
from tasks.contracts import AgentSpec, Episode, GameSpec, Mode, ModelKind, ModelRef, Role, Status


def game(
    players: str,
    rewards: Sequence[float | None] | None,
    *,
    status: Status = Status.COMPLETED,
    offender: int | None = None,
    mode: Mode = Mode.TRAIN,
) -> Episode:
    """One game; each letter of `players` is the model at that seat."""
    agents = tuple(AgentSpec(seat, Role.ACTOR, ModelRef(name, ModelKind.SCRIPTED)) for seat, name in enumerate(players))
    spec = GameSpec("run", "game", mode, "A-v0", len(players), 0, agents)
    return Episode(spec, status, rewards=None if rewards is None else tuple(rewards), offender=offender)


def rated(*games: Episode) -> Ratings:
    ratings = Ratings()
    for one in games:
        ratings.rate(one)
    return ratings


def test_the_first_game_gives_the_numbers_that_can_be_worked_out_by_hand() -> None:
    """Two players at the start, no draw: mu +- sigma^2/c * v(t), c^2 = 2 beta^2 + 2 sigma^2, t = -epsilon/c there."""
    beta, tau, epsilon = 25 / 6, 25 / 300, 0.7404666874  # epsilon = probit((0.1 + 1) / 2) * sqrt(2) * beta
    variance = (25 / 3) ** 2 + tau**2
    c = math.sqrt(2 * beta**2 + 2 * variance)
    t = -epsilon / c
    v = math.exp(-t * t / 2) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(-t / math.sqrt(2)))
    ratings = rated(game("ab", [1, -1]))
    assert ratings.of("a").mu == pytest.approx(25 + variance / c * v, abs=1e-4)
    assert ratings.of("b").mu == pytest.approx(25 - variance / c * v, abs=1e-4)
    sigma = math.sqrt(variance * (1 - variance / c**2 * v * (v + t)))
    assert ratings.of("a").sigma == ratings.of("b").sigma == pytest.approx(sigma, abs=1e-4)


def test_the_winner_rises_the_loser_falls_and_both_become_surer() -> None:
    ratings = rated(game("ab", [-1, 1]), game("ba", [1, -1]))
    assert ratings.of("b").mu > 25 > ratings.of("a").mu
    assert ratings.of("a").sigma < 25 / 3
    assert [(rating.uid, rating.games) for rating in ratings.all()] == [("a", 2), ("b", 2)]


def test_a_draw_between_equals_moves_nobody_and_is_the_same_from_both_sides() -> None:
    ratings = rated(game("ab", [0, 0]))
    assert ratings.of("a").mu == ratings.of("b").mu == pytest.approx(25)
    assert ratings.of("a").sigma == pytest.approx(ratings.of("b").sigma) == pytest.approx(6.458, abs=1e-3)


def test_a_draw_moves_unequals_together() -> None:
    before = rated(game("ab", [1, -1]))
    after = rated(game("ab", [1, -1]), game("ab", [0, 0]))
    assert before.of("b").mu < after.of("b").mu < after.of("a").mu < before.of("a").mu


def test_seats_do_not_matter() -> None:
    assert rated(game("ab", [1, 0])).of("a").mu == pytest.approx(rated(game("ba", [0, 1])).of("a").mu)


def test_ratings_depend_on_the_order_of_games_and_on_nothing_else() -> None:
    games = [game("ab", [1, 0]), game("bc", [1, 0]), game("ca", [1, 0]), game("abc", [2, 1, 0])]
    assert rated(*games).all() == rated(*games).all()
    assert rated(*games).of("a").mu != rated(*reversed(games)).of("a").mu


def test_going_on_from_kept_ratings_is_the_same_as_never_having_stopped() -> None:
    games = [game("ab", [1, 0]), game("bc", [0, 0]), game("ca", [1, 0])]
    kept = Ratings(rated(*games[:2]).all())
    kept.rate(games[2])
    assert kept.all() == rated(*games).all()


def test_the_conservative_rating_starts_at_0() -> None:
    assert ModelRating("a").conservative == pytest.approx(0)


def test_lanes_share_one_rating() -> None:
    assert rated(game("ab", [1, 0]), game("ab", [1, 0], mode=Mode.EVAL)).of("a").games == 2


@pytest.mark.parametrize("rewards", [[1, -1], [0, 0]])
def test_a_model_is_never_rated_against_itself(rewards: list[float]) -> None:
    assert rated(game("aa", rewards)).all() == []
    assert rated(game("aa", rewards, status=Status.ILLEGAL_MOVE, offender=0)).all() == []


@pytest.mark.parametrize("status", [status for status in Status if status not in ("completed", "illegal_move")])
def test_games_without_a_result_are_not_rated(status: Status) -> None:
    assert placing(game("ab", [1, -1], status=status)) == {}
    assert placing(game("a", [1], status=status)) == {}


def test_games_without_rewards_are_not_rated() -> None:
    assert placing(game("ab", None)) == placing(game("ab", [None, 1])) == placing(game("ab", [math.nan, 1])) == {}
    assert placing(game("a", [None])) == placing(game("a", [math.nan])) == {}


def test_whoever_ends_a_game_by_an_illegal_move_loses_whatever_was_paid() -> None:
    assert placing(game("ab", [0.8, 0], status=Status.ILLEGAL_MOVE, offender=0)) == {"a": 1, "b": 0}
    assert placing(game("ab", [None, 0], status=Status.ILLEGAL_MOVE, offender=0)) == {"a": 1, "b": 0}
    assert placing(game("abc", [9, 0, 1], status=Status.ILLEGAL_MOVE, offender=0)) == {"a": 2, "b": 1, "c": 0}
    assert placing(game("ab", [-1, None], status=Status.ILLEGAL_MOVE, offender=0)) == {}, "nobody to lose to"


def test_more_players_are_rated_by_rank() -> None:
    assert placing(game("abcd", [10, 3, 3, -5])) == {"a": 0, "b": 1.5, "c": 1.5, "d": 3}
    ratings = rated(game("abcd", [10, 3, 3, -5]))
    # With more than two the library iterates until it moves by less than 1e-4, which leaves a trace of the order.
    assert ratings.of("a").mu > ratings.of("b").mu == pytest.approx(ratings.of("c").mu, abs=0.05)
    assert ratings.of("c").mu > ratings.of("d").mu
    assert placing(game("abc", [1, None, 0])) == {"a": 0, "c": 1}


def test_a_model_at_several_seats_counts_once_at_its_mean_place() -> None:
    assert placing(game("aba", [2, 1, 0])) == {"a": 1, "b": 1}
    assert placing(game("abab", [1, 0, 1, 0])) == {"a": 0.5, "b": 2.5}
    assert rated(game("abab", [1, 0, 1, 0])).of("a").games == 1
    assert placing(game("aab", [3, None, 2])) == {"a": 0, "b": 1}


def test_a_single_player_plays_against_the_environment() -> None:
    assert placing(game("a", [1.0])) == {"a": 0, "environment:A-v0": 1}
    assert placing(game("a", [0.99])) == {"a": 1, "environment:A-v0": 0}
    assert placing(game("a", [1.0], status=Status.ILLEGAL_MOVE, offender=0)) == {"a": 1, "environment:A-v0": 0}
    assert placing(game("a", [None], status=Status.ILLEGAL_MOVE, offender=0)) == {"a": 1, "environment:A-v0": 0}
    ratings = rated(game("a", [1]), game("b", [0]))
    assert ratings.of("a").mu > 25 > ratings.of("b").mu
    assert ratings.of("environment:A-v0").games == 2
