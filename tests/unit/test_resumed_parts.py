"""Each part of a run goes on from where a checkpoint says it stood, as if it had never stopped."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from pipeline.config import EvalEnvSpec, TrainEnvSpec, VLLMConfig
from pipeline.env_samplers import BaseEnvSampler, RoundRobinEnvSampler, UniformEnvSampler
from pipeline.episode_store import EpisodeStore
from pipeline.game_specs import ID_GAP, SpecBuilder
from pipeline.groups import GroupGate
from pipeline.mlflow_run import CHANGED_TAG
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import FixedSampler
from pipeline.replay import StepBuffer
from pipeline.stored_games import read_games
from pipeline.tracking import MLflowTracker
from tasks.contracts import Episode, GameSpec, Mode
from tasks.errors import DatasetError
from tests.unit.example_episodes import full_episode
from tests.unit.metric_games import game
from tests.unit.test_groups import member

TRAIN = [TrainEnvSpec(env_id=f"Game{number}-v0") for number in range(3)]
EVALUATION = [EvalEnvSpec(env_id=f"Game{number}-v0") for number in range(3)]


def saved(part: Any) -> Any:
    """The state of a part after a checkpoint."""
    return pickle.loads(pickle.dumps(part.state()))


@pytest.mark.parametrize("kind", [UniformEnvSampler, RoundRobinEnvSampler])
def test_environments_come_in_the_sequence_they_would_have(kind: type[BaseEnvSampler]) -> None:
    first, second = kind(TRAIN, EVALUATION, seed=3), kind(TRAIN, EVALUATION, seed=3)
    for _ in range(5):
        first.sample()
    first.sample_eval()
    second.restore(saved(first))
    assert [second.sample() for _ in range(12)] == [first.sample() for _ in range(12)]
    assert [second.sample_eval() for _ in range(4)] == [first.sample_eval() for _ in range(4)]


def test_opponents_come_in_the_sequence_they_would_have() -> None:
    def sampler() -> FixedSampler:
        registry = ModelRegistry(VLLMConfig(model_name="scripted:random").policy())
        return FixedSampler(registry, ["scripted:random", "scripted:first"], seed=5)

    first, second = sampler(), sampler()
    for _ in range(7):
        first.sample_opponent(TRAIN[0])
    second.restore(saved(first))
    drawn = [first.sample_opponent(TRAIN[0]) for _ in range(20)]
    assert [second.sample_opponent(TRAIN[0]) for _ in range(20)] == drawn


def builder() -> SpecBuilder:
    vllm = VLLMConfig(model_name="scripted:random")
    registry = ModelRegistry(vllm.policy())
    opponents = FixedSampler(registry, ["scripted:random", "scripted:first"], seed=5)
    return SpecBuilder("run", vllm, UniformEnvSampler(TRAIN, EVALUATION), opponents, "default", seed=1)


def seeds_and_seats(specs: list[GameSpec]) -> list[Any]:
    return [(spec.seed, [agent.role for agent in spec.agents]) for spec in specs]


def test_games_have_the_seeds_they_would_have_had_and_ids_of_their_own() -> None:
    first, second = builder(), builder()
    played = [first.train() for _ in range(5)] + [first.evaluation()]
    state = saved(first)
    lost = [first.train() for _ in range(3)]
    second.restore(state, [spec.game_id for spec in (*played, lost[1])])
    again = [second.train() for _ in range(3)]
    assert seeds_and_seats(again) == seeds_and_seats(lost)
    assert again[0].game_id == f"train-{ID_GAP:06d}"
    assert second.evaluation().game_id == f"eval-{ID_GAP:06d}"
    assert second.evaluation().seed != played[-1].seed


def test_a_second_resume_leaves_a_gap_of_its_own() -> None:
    first, second = builder(), builder()
    second.restore(saved(first), [f"train-{ID_GAP + 7:06d}"])
    assert second.train().game_id == f"train-{2 * ID_GAP:06d}"


def test_a_group_whose_games_will_never_come_is_sent_on_short() -> None:
    first, buffer = GroupGate(StepBuffer(), 3), StepBuffer()
    first.add(member(0, group="whole"))
    first.add(member(1, group="whole"))
    first.add(member(0, group="torn"))
    second = GroupGate(buffer, 3)
    second.restore(saved(first))
    second.add(member(2, group="whole"))
    second.close_open()
    assert second.counts() == {"size": 3, "complete": 1, "incomplete": 1, "dropped": 0}
    assert buffer.stats().episodes == 4
    drawn = buffer.get_batch(buffer.size())
    assert {(item.group_size, item.group_delivered) for item in drawn if item.group_id == "torn"} == {(3, 1)}


def named(number: int) -> Episode:
    episode = full_episode()
    return replace(episode, spec=replace(episode.spec, game_id=f"{Mode.TRAIN}-{number:06d}"))


def test_a_store_goes_on_after_the_shards_that_are_there(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path) as store:
        store.add(named(0))
    with EpisodeStore(tmp_path, resume=True) as store:
        before = store.shards()
        store.add(named(1))
        store.flush()
        added = store.shards() - before
    assert [sorted(name[:5] for name in names) for names in (before, added)] == [["00000"], ["00001"]]
    (shard,) = added
    assert list(read_games(tmp_path, shard)) == [named(1)]


def test_what_a_kill_left_half_published_is_removed(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path) as store:
        store.add(named(0))
    steps = tmp_path / "replay" / "steps"
    (steps / "00001-lost.parquet").write_bytes(b"steps without their episodes")
    (steps / ".00002-lost.parquet.tmp").write_bytes(b"half")
    with EpisodeStore(tmp_path, resume=True) as store:
        kept = store.shards()
    assert {path.name for path in steps.iterdir()} == kept


def test_without_resume_another_runs_shards_are_refused(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path) as store:
        store.add(named(0))
    with pytest.raises(DatasetError, match="a run folder holds one run"):
        EpisodeStore(tmp_path)


def test_mlflow_goes_on_in_the_same_run_and_a_changed_parameter_is_a_change(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    lives = []
    for rate in (0.5, 0.25):
        with MLflowTracker(uri, "selfplay", "demo", run_dir=tmp_path, key="abc") as tracker:
            tracker.log_params({"seed": 1, "learner": {"learning_rate": rate}})
            if lives:
                tracker.log_past_episode(game())
            tracker.log_episode(game())
            tracker.log_learning({"loss": rate}, len(lives))
        lives.append(tracker.run_id)
    assert lives[0] == lives[1]
    client = MlflowClient(uri)
    run = client.get_run(str(lives[0]))
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "1", "learner.learning_rate": "0.5"}
    assert run.data.tags[f"{CHANGED_TAG}learner.learning_rate"] == "0.5 -> 0.25"
    assert [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "learning/loss")] == [
        (0, 0.5),
        (1, 0.25),
    ]
    games = client.get_metric_history(run.info.run_id, "train/Kuhn/games")
    assert [(point.step, point.value) for point in games] == [(1, 1.0), (2, 2.0)]


def test_another_key_is_another_run(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    ids = set()
    for key in ("abc", "def"):
        with MLflowTracker(uri, "selfplay", "demo", run_dir=tmp_path, key=key) as tracker:
            tracker.log_episode(game())
        ids.add(tracker.run_id)
    assert len(ids) == 2
