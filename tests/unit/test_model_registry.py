"""What the registry counts, that it survives saving, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.model_registry import ModelRegistry
from pipeline.model_results import Tally
from tasks.contracts import AdapterRef, AgentSpec, Episode, GameSpec, Mode, ModelKind, ModelRef, Role, Status
from tasks.errors import ConfigError, DatasetError

POLICY = ModelRef("policy@0", ModelKind.ENGINE, policy_version=0)
RANDOM = ModelRef("scripted:random", ModelKind.SCRIPTED)
ADAPTER = ModelRef("adapter:early@0", ModelKind.ENGINE, adapter=AdapterRef("adapter:early@0", "/adapters/early"))


def episode(
    models: Sequence[ModelRef],
    rewards: Sequence[float | None] | None,
    *,
    status: Status = Status.COMPLETED,
    offender: int | None = None,
    mode: Mode = Mode.TRAIN,
) -> Episode:
    agents = tuple(AgentSpec(player, Role.ACTOR, model) for player, model in enumerate(models))
    spec = GameSpec("run", "game", mode, "A-v0", len(models), 0, agents)
    return Episode(spec, status, rewards=None if rewards is None else tuple(rewards), offender=offender)


def recorded(*episodes: Episode) -> ModelRegistry:
    registry = ModelRegistry(POLICY)
    for one in episodes:
        registry.record(one)
    return registry


def test_wins_draws_and_losses_are_counted_for_both_models_and_the_pair() -> None:
    registry = recorded(
        episode([POLICY, RANDOM], [1, -1]),
        episode([RANDOM, POLICY], [-1, 1]),
        episode([POLICY, RANDOM], [0, 0]),
        episode([POLICY, RANDOM], [-1, 1]),
    )
    policy = Tally(games=4, wins=2, draws=1, losses=1)
    other = Tally(games=4, wins=1, draws=1, losses=2)
    assert registry.results("policy@0", Mode.TRAIN).versus == policy
    assert registry.results("scripted:random", Mode.TRAIN).versus == other
    assert registry.pair("policy@0", "scripted:random", Mode.TRAIN) == policy
    assert registry.pair("scripted:random", "policy@0", Mode.TRAIN) == other


def test_a_win_by_the_others_illegal_move_counts_apart_and_the_offender_loses_whatever_it_was_paid() -> None:
    registry = recorded(episode([POLICY, RANDOM], [0, 1], status=Status.ILLEGAL_MOVE, offender=1))
    assert registry.results("policy@0", Mode.TRAIN).versus == Tally(games=1, forfeit_wins=1)
    assert registry.pair("policy@0", "scripted:random", Mode.TRAIN) == Tally(games=1, forfeit_wins=1)
    assert registry.pair("scripted:random", "policy@0", Mode.TRAIN) == Tally(games=1, losses=1)


def test_lanes_are_counted_apart() -> None:
    registry = recorded(episode([POLICY, RANDOM], [1, -1], mode=Mode.EVAL))
    assert registry.results("policy@0", Mode.EVAL).versus.wins == 1
    assert registry.results("policy@0", Mode.TRAIN).versus == Tally()
    assert registry.pair("policy@0", "scripted:random", Mode.EVAL).wins == 1
    assert registry.pair("policy@0", "scripted:random", Mode.TRAIN) == Tally()


def test_a_mirror_game_is_counted_as_one_and_nobody_wins_it() -> None:
    registry = recorded(
        episode([POLICY, POLICY], [1, -1]),
        episode([POLICY, POLICY], [0, 0], status=Status.ILLEGAL_MOVE, offender=0),
    )
    results = registry.results("policy@0", Mode.TRAIN)
    assert results.mirror_games == 2
    assert results.versus == Tally()
    assert registry.pair("policy@0", "policy@0", Mode.TRAIN) == Tally()


def test_single_player_games_have_a_mean_reward_and_solved_ones_but_no_winner() -> None:
    registry = recorded(
        *(episode([POLICY], [reward]) for reward in (1.0, 0.25, float("nan"), None, -0.5, 1.5)),
    )
    results = registry.results("policy@0", Mode.TRAIN)
    assert results.single_player.games == 4
    assert results.single_player.solved == 2
    assert results.single_player.mean_reward == pytest.approx(2.25 / 4)
    assert results.mirror_games == 0
    assert results.versus == Tally()
    assert registry.results("policy@0", Mode.EVAL).single_player.mean_reward is None


@pytest.mark.parametrize("status", [status for status in Status if status not in ("completed", "illegal_move")])
def test_games_without_a_trainable_end_make_models_known_but_leave_no_result(status: Status) -> None:
    registry = recorded(episode([POLICY, RANDOM], [1, -1], status=status))
    assert registry.get("scripted:random") == RANDOM
    assert registry.results("scripted:random", Mode.TRAIN).versus == Tally()


def test_an_unfinished_game_leaves_no_result() -> None:
    assert recorded(episode([POLICY, RANDOM], None)).results("policy@0", Mode.TRAIN).versus == Tally()


def test_with_more_players_each_two_of_different_models_are_compared() -> None:
    registry = recorded(episode([POLICY, RANDOM, POLICY, ADAPTER], [3, 2, 1, 2]))
    assert registry.results("policy@0", Mode.TRAIN).versus == Tally(games=2, wins=1, losses=1)
    assert registry.results("scripted:random", Mode.TRAIN).versus == Tally(games=1, losses=1)
    assert registry.pair("policy@0", "scripted:random", Mode.TRAIN) == Tally(games=2, wins=1, losses=1)
    assert registry.pair("scripted:random", "adapter:early@0", Mode.TRAIN) == Tally(games=1, draws=1)


def test_with_more_players_an_illegal_move_decides_only_between_the_offender_and_each_other() -> None:
    registry = recorded(episode([POLICY, RANDOM, ADAPTER], [2, 1, 9], status=Status.ILLEGAL_MOVE, offender=2))
    assert registry.pair("policy@0", "scripted:random", Mode.TRAIN) == Tally()
    assert registry.pair("scripted:random", "adapter:early@0", Mode.TRAIN) == Tally(games=1, forfeit_wins=1)
    assert registry.pair("adapter:early@0", "policy@0", Mode.TRAIN) == Tally(games=1, losses=1)


def test_the_current_checkpoint_is_the_policy() -> None:
    assert ModelRegistry(POLICY).current() == POLICY


def test_a_model_may_be_added_twice_but_a_uid_has_one_model() -> None:
    registry = ModelRegistry(POLICY)
    registry.add(POLICY)
    with pytest.raises(ConfigError, match=r"two models share the uid 'policy@0': .* give one a new uid"):
        registry.add(ModelRef("policy@0", ModelKind.SCRIPTED))
    assert registry.get("policy@0") == POLICY


def test_an_unknown_model_is_refused_with_the_nearest_uid() -> None:
    registry = recorded(episode([POLICY, RANDOM], [1, -1]))
    message = r"no model 'policy@9' in the registry; it knows policy@0, scripted:random\. Did you mean 'policy@0'"
    for ask in (
        lambda: registry.get("policy@9"),
        lambda: registry.results("policy@9", Mode.TRAIN),
        lambda: registry.pair("policy@0", "policy@9", Mode.TRAIN),
    ):
        with pytest.raises(ConfigError, match=message):
            ask()


def full_registry(path: Path) -> ModelRegistry:
    registry = ModelRegistry(POLICY, path)
    registry.record(episode([POLICY, RANDOM], [1, -1]))
    registry.record(episode([ADAPTER, POLICY], [0, 0], mode=Mode.EVAL))
    registry.record(episode([POLICY, POLICY], [1, -1]))
    registry.record(episode([POLICY], [0.1]))
    return registry


def test_what_was_saved_loads_as_an_equal_registry_that_goes_on_counting(tmp_path: Path) -> None:
    registry = full_registry(tmp_path / "registry.json")
    registry.save()
    loaded = ModelRegistry.load(tmp_path / "registry.json")
    assert loaded == registry
    assert loaded.current() == POLICY
    assert loaded.get("adapter:early@0") == ADAPTER
    loaded.record(episode([POLICY, RANDOM], [1, -1]))
    assert loaded != registry
    registry.record(episode([POLICY, RANDOM], [1, -1]))
    assert loaded == registry
    loaded.save()
    assert ModelRegistry.load(tmp_path / "registry.json") == loaded


def test_the_file_is_plain_json_with_a_version(tmp_path: Path) -> None:
    full_registry(tmp_path / "registry.json").save()
    content = json.loads((tmp_path / "registry.json").read_text())
    assert content["version"] == 3
    assert content["current"] == "policy@0"
    assert content["pairs"][0]["against"] == "policy@0"
    assert [path.name for path in tmp_path.iterdir()] == ["registry.json"]


def test_ratings_are_kept_with_the_results_and_a_file_from_before_them_loads(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    registry = full_registry(path)
    registry.save()
    ratings = ModelRegistry.load(path).ratings()
    assert ratings == registry.ratings()
    assert [(rating.uid, rating.games) for rating in ratings] == [
        ("adapter:early@0", 1),
        ("environment:A-v0", 1),
        ("policy@0", 3),
        ("scripted:random", 1),
    ]
    content = json.loads(path.read_text()) | {"version": 1}
    del content["ratings"]
    path.write_text(json.dumps(content))
    older = ModelRegistry.load(path)
    assert older.ratings() == []
    assert older.pair("policy@0", "scripted:random", Mode.TRAIN).wins == 1
    older.save()
    assert json.loads(path.read_text())["version"] == 3


def test_a_model_that_has_not_been_rated_has_the_starting_rating_and_an_unknown_one_none() -> None:
    registry = recorded(episode([POLICY, POLICY], [1, -1]))
    assert (registry.rating("policy@0").mu, registry.rating("policy@0").games) == (25.0, 0)
    with pytest.raises(ConfigError, match=r"no model 'policy@9' in the registry"):
        registry.rating("policy@9")


def test_policy_versions_are_had_oldest_first() -> None:
    registry = recorded(episode([POLICY, RANDOM], [1, -1]))
    for version in (10, 2):
        registry.add(ModelRef(f"policy@{version}", ModelKind.ENGINE, version))
    assert [model.uid for model in registry.policy_versions()] == ["policy@0", "policy@2", "policy@10"]


def test_a_save_that_breaks_off_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = full_registry(tmp_path / "registry.json")
    registry.save()
    before = (tmp_path / "registry.json").read_bytes()
    registry.record(episode([POLICY, RANDOM], [1, -1]))

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        registry.save()
    assert (tmp_path / "registry.json").read_bytes() == before


def test_saving_without_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no path to save to: make it as ModelRegistry\(policy, path\)"):
        ModelRegistry(POLICY).save()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"none\.json cannot be read as a model registry \(No such file"):
        ModelRegistry.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 4}, r"version: Input should be 1, 2 or 3"),
        ({"current": "policy@7"}, r"current: 'policy@7' is none of its models"),
        ({"models": [{"uid": "policy@0"}]}, r"models\.0\.kind: Field required"),
        ({"pairs": "none"}, r"pairs: Input should be a valid"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    path = tmp_path / "registry.json"
    full_registry(path).save()
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(
        DatasetError, match=rf"\({reason}.*\); expected the registry\.json of a run, version 1 to 3\. Take it"
    ):
        ModelRegistry.load(path)


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe\x00", b'{"version": 1, "cur'])
def test_a_garbled_file_is_refused(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "registry.json"
    path.write_bytes(garbage)
    with pytest.raises(DatasetError, match=r"\(the file: Invalid JSON"):
        ModelRegistry.load(path)
