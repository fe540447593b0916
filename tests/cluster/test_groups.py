"""Groups on real Dask processes: one game several times, delivered together, whatever happens to its games."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from pipeline.config import TrainEnvSpec
from pipeline.env_samplers import UniformEnvSampler
from pipeline.replay import StepBuffer, StopConditions
from tasks.contracts import Trajectory
from tasks.shards import read_episodes, read_steps
from tests.cluster.collections import check_books, kuhn, kuhn_eval, scheduler, stub

pytestmark = pytest.mark.cluster


class Watched(StepBuffer):
    """A step buffer that also keeps what came, in order."""

    def __init__(self, episodes: int) -> None:
        super().__init__(stop=StopConditions(episodes=episodes))
        self.came: list[Trajectory] = []

    def add_player_trajectory(self, trajectory: Trajectory, env_id: str) -> None:
        self.came.append(trajectory)
        super().add_player_trajectory(trajectory, env_id)


def groups_of(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """The training games' rows by group, in the order of their places in it."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(read_episodes(run_dir).to_pylist(), key=lambda row: row["group_index"]):
        if row["mode"] == "train":
            groups[row["group_id"]].append(row)
    return groups


def test_a_group_is_one_game_played_several_times_and_arrives_together(client: Client, tmp_path: Path) -> None:
    buffer = Watched(episodes=24)
    engine = stub("groups", latency_s=0.002, die_after=60, deaths=1)
    games = scheduler(client, tmp_path, engine, buffer=buffer, evaluation=kuhn_eval(), group_size=4)
    ledger = games.collect(num_train_workers=6, num_eval_workers=1)
    assert set(check_books(ledger, tmp_path)) <= {"completed", "illegal_move"}
    assert ledger.retried_attempts >= 1
    groups = groups_of(tmp_path)
    for group_id, rows in groups.items():
        assert [row["group_index"] for row in rows] == [0, 1, 2, 3]
        assert group_id == rows[0]["game_id"]
        assert all((row["seed"], row["model_uid"]) == (rows[0]["seed"], rows[0]["model_uid"]) for row in rows)
    said = defaultdict(list)
    for step in sorted(read_steps(tmp_path).to_pylist(), key=lambda step: (step["game_id"], step["step_index"])):
        said[step["game_id"]].append(step["completion"])
    assert any(len({tuple(said[row["game_id"]]) for row in rows}) > 1 for rows in groups.values())
    arrived = [group_id for group_id, _ in itertools.groupby(buffer.came, key=lambda came: came.group_id)]
    assert sorted(arrived) == sorted(groups), "each group in one piece, and every one of them"
    assert {(came.group_delivered, came.group_size) for came in buffer.came} == {(4, 4)}
    assert buffer.stats().episodes == 4 * len(groups)
    assert ledger.summary()["groups"] == {"size": 4, "complete": len(groups), "incomplete": 0, "dropped": 0}
    evaluation = [row for row in read_episodes(tmp_path).to_pylist() if row["mode"] == "eval"]
    assert evaluation
    assert all((row["group_id"], row["group_index"]) == (row["game_id"], 0) for row in evaluation)


@pytest.mark.parametrize("policy", ["deliver", "drop"])
def test_groups_with_games_cut_off_are_delivered_with_their_count_or_dropped(
    client: Client, tmp_path: Path, policy: str
) -> None:
    buffer = Watched(episodes=30)
    cut = kuhn(max_turns=7)  # games take 6 to 8
    games = scheduler(client, tmp_path, buffer=buffer, train=cut, group_size=3, incomplete_groups=policy)
    ledger = games.collect(num_train_workers=8)
    assert set(check_books(ledger, tmp_path)) == {"completed", "truncated"}
    good = {
        group_id: sum(row["status"] == "completed" for row in rows) for group_id, rows in groups_of(tmp_path).items()
    }
    complete, short = (sum(test(count) for count in good.values()) for test in (lambda n: n == 3, lambda n: 0 < n < 3))
    assert complete and short
    delivered = {came.group_id: came.group_delivered for came in buffer.came if came.final_reward is not None}
    wanted = {group_id: count for group_id, count in good.items() if count == 3 or (count and policy == "deliver")}
    assert delivered == wanted
    assert ledger.summary()["groups"] == {
        "size": 3,
        "complete": complete,
        "incomplete": short if policy == "deliver" else 0,
        "dropped": len(good) - len(wanted),
    }
    assert buffer.stats().episodes == sum(wanted.values())


class Breaks(UniformEnvSampler):
    """A user's sampler with a mistake that shows at the eighth game."""

    asked = 0

    def sample(self) -> TrainEnvSpec:
        self.asked += 1
        if self.asked == 8:
            raise ZeroDivisionError("the user's own mistake")
        return super().sample()


def test_an_error_ends_groups_by_the_policy_and_keeps_the_books(client: Client, tmp_path: Path) -> None:
    buffer = Watched(episodes=1000)
    engine = stub("broken-off", latency_s=0.02)
    games = scheduler(client, tmp_path, engine, buffer=buffer, env_sampler=Breaks([kuhn()]), group_size=3)
    with pytest.raises(ZeroDivisionError, match="the user's own mistake"):
        games.collect(num_train_workers=8)
    statuses = check_books(games.ledger, tmp_path)
    assert statuses["cancelled"] >= 1
    groups = groups_of(tmp_path)
    assert {len(rows) for rows in groups.values()} == {3}
    counts = games.ledger.summary()["groups"]
    assert counts["complete"] + counts["incomplete"] + counts["dropped"] == len(groups) == 7
    whole = {group for group, rows in groups.items() if all(row["rewards"] for row in rows)}
    assert {came.group_id for came in buffer.came if came.group_delivered == 3} == whole
