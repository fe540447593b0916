"""TrueSkill ratings of models, from the games they played against each other and against environments.

Herbrich, Minka and Graepel, "TrueSkill: A Bayesian Skill Rating System" (2006), by the library `trueskill` with its own
settings: a model starts at mu 25 with sigma 25/3. Each rated game moves the ratings of those who played, so ratings
depend on the games' order; the same episodes in the same order give the same ratings.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import trueskill

from tasks.contracts import Episode, Status
from tasks.outcomes import outcomes, solved

RATED = frozenset({Status.COMPLETED, Status.ILLEGAL_MOVE})
ENVIRONMENT = "environment:"
INHERITED_GAMES = 25
_SYSTEM = trueskill.TrueSkill()


@dataclass(frozen=True)
class ModelRating:
    """What is believed of one model's skill: a normal distribution, after `games` rated games of either lane.

    `uid` is a model's, or `environment:ENV_ID` for an environment as the opponent of single players.
    """

    uid: str
    mu: float = _SYSTEM.mu
    sigma: float = _SYSTEM.sigma
    games: int = 0

    @property
    def conservative(self) -> float:
        """`mu - 3 sigma`: the skill is almost certainly at least this."""
        return self.mu - 3 * self.sigma


class Ratings:
    """One rating for each model that has played a rated game.

    Args:
        known: ratings to go on from.
    """

    def __init__(self, known: Iterable[ModelRating] = ()) -> None:
        self._ratings = {rating.uid: rating for rating in known}

    def all(self) -> list[ModelRating]:
        """Every rating, by uid."""
        return [rating for _, rating in sorted(self._ratings.items())]

    def of(self, uid: str) -> ModelRating:
        """The rating of one model; where it has not played, the one that everybody starts with."""
        return self._ratings.get(uid, ModelRating(uid))

    def inherit(self, uid: str, parent: str) -> None:
        """Begin a new model where the one it was made from stands, and less sure of it; a parent unknown leaves none.

        TrueSkill's own step between two games adds tau^2 to the variance (Herbrich et al., section 3). A new model may
        have moved as far as `INHERITED_GAMES` games' worth of that; never does it know less than one that is new.
        """
        known = self._ratings.get(parent)
        if known is not None:
            sigma = math.sqrt(known.sigma**2 + INHERITED_GAMES * _SYSTEM.tau**2)
            self._ratings[uid] = ModelRating(uid, known.mu, min(sigma, _SYSTEM.sigma))

    def rate(self, episode: Episode) -> None:
        """Move the ratings of those who played one game; a game without two sides to compare moves none."""
        places = placing(episode)
        if len(places) < 2:
            return
        before = [self.of(uid) for uid in places]
        after = _SYSTEM.rate(
            [(_SYSTEM.create_rating(rating.mu, rating.sigma),) for rating in before], ranks=list(places.values())
        )
        for rating, (skill,) in zip(before, after, strict=True):
            self._ratings[rating.uid] = ModelRating(rating.uid, skill.mu, skill.sigma, rating.games + 1)


def placing(episode: Episode) -> Mapping[str, float]:
    """The place of each side of a game by uid, the lower the better, equal for a draw; empty where nothing is rated.

    Only games with a result are rated: `completed` and `illegal_move`. Players are ranked by their raw rewards; the one
    whose illegal move ended the game comes last whatever it was paid; one without a reward is left out. A model that
    holds several seats counts once, at the mean of its places, so a model is never rated against itself. A single
    player beats the environment where it solved it and loses to it otherwise.
    """
    if episode.status not in RATED or episode.rewards is None:
        return {}
    agents = episode.spec.agents
    if len(agents) == 1:
        return _against_environment(agents[0].model.uid, episode)
    seats: dict[str, list[float]] = defaultdict(list)
    for agent, place in zip(agents, _places(episode.rewards, episode.offender), strict=True):
        if place is not None:
            seats[agent.model.uid].append(place)
    return {uid: fmean(places) for uid, places in seats.items()} if len(seats) > 1 else {}


def _against_environment(uid: str, episode: Episode) -> Mapping[str, float]:
    (reward,) = episode.rewards or (None,)
    if episode.offender is None and (reward is None or not math.isfinite(reward)):
        return {}
    won = episode.offender is None and solved(reward)
    return {uid: 1.0 - won, f"{ENVIRONMENT}{episode.spec.env_id}": float(won)}


def _places(rewards: Sequence[float | None], offender: int | None) -> list[float | None]:
    """Each player's place from 0, those who tie at the mean of the places they share; None for one without a result."""
    strengths = [
        None if result is None else (player != offender, 0.0 if reward is None else reward)
        for player, (reward, result) in enumerate(zip(rewards, outcomes(rewards, offender), strict=True))
    ]
    known = [strength for strength in strengths if strength is not None]
    return [
        None
        if strength is None
        else sum(other > strength for other in known) + (sum(other == strength for other in known) - 1) / 2
        for strength in strengths
    ]
