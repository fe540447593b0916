"""`verify_run`: a sound run passes; whatever was changed is found, named and does not hide the rest."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tests.environments  # noqa: F401  (registers the ones that break)
from pipeline import reenact
from pipeline.cli import main
from pipeline.verify import Report, verify_run
from tasks.contracts import Episode, ModelKind, Status
from tasks.errors import DatasetError
from tests.environments.slow import SLOW, SlowEnv
from tests.unit.played_runs import POLICY, SaysAlways, game_spec, kuhn_games, play, rewrite, shards, store_run

Rows = list[dict[str, Any]]


def problems(run_dir: Path) -> list[str]:
    return [str(problem) for problem in verify_run(run_dir).problems]


def unfinished(status: Status) -> Episode:
    """A game given up after two of its steps."""
    (episode,) = play(game_spec(f"game-{status}", seed=9))
    changes: dict[str, Any] = {"rewards": None, "offender": None, "player_info": (), "reason": "given up"}
    return replace(episode, status=status, steps=episode.steps[:2], **changes)


def test_a_run_replays_as_it_was_stored(tmp_path: Path) -> None:
    episodes = [
        *kuhn_games(20),
        *play(game_spec("tictactoe", "TicTacToe-v0-train", seed=2**63 - 1, error_allowance=0)),
        *play(game_spec("capped", max_turns=2), game_spec("broken", "Broken-v0"), game_spec("unknown", "Kuhn-v0")),
        *play(game_spec("illegal", model=POLICY, error_allowance=1), engine=SaysAlways("\\boxed{[jump]}")),
        *play(game_spec("checks", model=POLICY), engine=SaysAlways("\\boxed{[check]}")),
        *play(game_spec("hanoi", "TowerOfHanoi-v0-train", players=1, max_turns=5)),
        *play(game_spec("three", "ThreeInARoom-v0", players=3, max_turns=6)),
        *(unfinished(status) for status in (Status.CANCELLED, Status.TIMEOUT, Status.OVERFLOW, Status.FAILED)),
    ]
    assert {episode.status for episode in episodes} == set(Status)
    report = verify_run(store_run(tmp_path, episodes, episodes_per_shard=7))
    steps = sum(len(episode.steps) for episode in episodes)
    assert (report.problems, report.notes) == ([], [])
    assert (report.shards, report.episodes, report.steps) == (2 * math.ceil(len(episodes) / 7), len(episodes), steps)
    assert (report.replayed_episodes, report.replayed_steps) == (len(episodes), steps)
    assert str(report).splitlines()[-1] == "verified"


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("episodes", "rewards", [5.0, -1.0], "game train-000003, rewards: stored (5.0, -1.0), replayed ("),
        ("episodes", "rewards", None, "game train-000003, rewards: stored None, replayed ("),
        ("episodes", "status", "truncated", "game train-000003, status: stored 'truncated', replayed 'completed'"),
        ("episodes", "offender", 1, "game train-000003, offender: stored 1, replayed None"),
        ("episodes", "offender", 2, "game train-000003: offender: stored 2, expected 0 to 1"),
        ("episodes", "reason", "won", "game train-000003, reason: stored 'won', replayed '"),
        ("episodes", "outcome", ["draw", "draw"], "game train-000003, outcome: stored ['draw', 'draw'], expected ["),
        ("episodes", "seed", 77, "observation: stored \"t of 3 rounds. Your card is: 'Q'"),
        (
            "episodes",
            "env_id",
            "Kuhn-v0",
            "game train-000003, environment: stored played on, replayed EnvironmentFault: unknown",
        ),
        ("episodes", "status", "won", "game train-000003: column 'status' holds 'won', expected one of completed"),
        ("episodes", "turns", 99, "rows in steps/, expected 99 by turns, from 0 on"),
        ("episodes", "run_id", "run-2", "game train-000003: run_id: stored 'run-2', expected 'run-1', as the games"),
        ("episodes", "turns", 2**31 - 1, "rows in steps/, expected 2147483647 by turns, from 0 on"),
        ("episodes", "num_players", 0, "game train-000003: num_players: stored 0, expected at least 1"),
        ("episodes", "model_uid", [None, "x"], "column 'model_uid' holds [None, 'x'], expected a text for each player"),
        ("episodes", "escaped", ["x"], "column 'escaped' holds ['x'], of which 'x' is no column"),
        ("episodes", "game_id", "train-000002", "game train-000002: a second row, the first is in episodes/00000"),
        ("steps", "observation", "Hello", "game train-000003, step 0, observation: stored 'Hello', replayed 'You are "),
        ("steps", "action", "[dance]", "game train-000003, step 0, illegal: stored False, replayed True"),
        ("steps", "illegal", True, "game train-000003, step 0, illegal: stored True, replayed False"),
        ("steps", "info", '{"a": 1}', "game train-000003, step 0, info: stored '{\"a\": 1}', replayed '{"),
        ("steps", "player_id", 0, "game train-000003, step 0, player_id: stored 0, replayed 1"),
        ("steps", "player_id", 7, "game train-000003: step 0, player_id: stored 7, expected 0 to 1"),
        ("steps", "step_index", 1, "game train-000003: step 0: "),
        ("steps", "final_reward", 9.5, "game train-000003, step 0, final_reward: stored 9.5, expected "),
        ("steps", "role", "actor", "game train-000003, step 0, role: stored 'actor', expected 'opponent'"),
        ("steps", "policy_version", 4, "game train-000003, step 0, policy_version: stored 4, expected None"),
        ("steps", "logprobs", [-0.5], "game train-000003: step 0, logprobs: 1 values for 0 completion_ids"),
        ("steps", "logprobs", [None], "step 0, logprobs: holds null, expected a number in each place"),
        ("steps", "prompt_ids", [None], "step 0, prompt_ids: holds null, expected a number in each place"),
        ("steps", "reward", 0.5, "game train-000003, step 0, reward: stored 0.5, replayed None"),
        ("steps", "escaped", ["x"], "column 'escaped' holds ['x'], of which 'x' is no column"),
        ("steps", "logprobs_ok", False, "game train-000003, step 0, logprobs_ok: stored False, expected True"),
        ("steps", "completion", "[dance]", "game train-000003, step 0, action: stored '["),
        ("steps", "generated_tokens", 7, "step 0, generated_tokens: stored 7, expected 0 for a scripted player"),
        ("episodes", "duration_s", 60.5, "game train-000003, duration_s: stored 60.5, expected 0.0"),
        ("episodes", "duration_s", None, "game train-000003, duration_s: stored None, expected 0.0"),
    ],
)
def test_one_changed_value_is_found_and_named(
    tmp_path: Path, table: str, column: str, value: Any, message: str
) -> None:
    store_run(tmp_path, kuhn_games(6), episodes_per_shard=3)
    path = shards(tmp_path, table)[1]

    def change(rows: Rows) -> None:
        next(row for row in rows if row["game_id"] == "train-000003")[column] = value

    rewrite(path, change)
    report = verify_run(tmp_path)
    assert not report.ok
    assert message in str(report.problems[0])
    assert str(report.problems[0]).split(":")[0] in (f"episodes/{path.name}", f"steps/{path.name}")
    assert report.replayed_episodes >= 5 - (column == "game_id")
    assert str(report).splitlines()[-1].startswith("not verified: ")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("completion", "\\boxed{[bet]}", "action: stored '[check]', expected '[bet]' of its completion"),
        ("completion", None, "completion: stored None, expected a text"),
        ("format_ok", False, "format_ok: stored False, expected True of its completion"),
        ("feedback", "no move found", "feedback: stored 'no move found', expected '' of its completion"),
        ("generated_tokens", 1, "generated_tokens: stored 1, expected at least the 2 of completion_ids"),
    ],
)
def test_a_models_answer_is_read_again(tmp_path: Path, column: str, value: Any, message: str) -> None:
    store_run(tmp_path, play(game_spec("game-0", model=POLICY), engine=SaysAlways("I see. \\boxed{[check]}")))
    assert problems(tmp_path) == []
    (path,) = shards(tmp_path, "steps")
    rewrite(path, lambda rows: rows[0].update({column: value}))
    assert problems(tmp_path)[0] == f"steps/{path.name}: game game-0, step 0, {message}"


def read_by(extraction: str, run_dir: Path, **choice: Any) -> Report:
    """What comes of a run of one game of a model whose answers that extraction read."""
    (episode,) = play(game_spec("game-0", model=POLICY), engine=SaysAlways("\\boxed{[check]}"))
    kind = ModelKind.API if choice else ModelKind.ENGINE
    agents = tuple(
        replace(agent, action_extraction=extraction, model=replace(POLICY, kind=kind)) for agent in episode.spec.agents
    )
    steps = tuple(replace(step, choice=replace(step.choice, **choice)) for step in episode.steps)
    return verify_run(store_run(run_dir, [replace(episode, spec=replace(episode.spec, agents=agents), steps=steps)]))


def test_answers_are_not_read_again_by_what_is_not_to_be_had(tmp_path: Path) -> None:
    report = read_by("not_here.prompts:last_word", tmp_path)
    assert report.problems == []
    assert report.notes == [
        "actions were not read from completions again with not_here.prompts:last_word, which is not to be had here"
    ]


def breaks(completion: str) -> None:
    raise KeyError(completion[:6])


def test_an_extraction_that_breaks_on_an_answer_it_once_read_is_a_problem(tmp_path: Path) -> None:
    (problem,) = read_by(f"{__name__}:breaks", tmp_path).problems
    assert problem.what == (
        f"game game-0, step 0, completion: action_extraction '{__name__}:breaks' raised KeyError: '\\\\boxed'"
    )


def test_an_endpoint_may_have_answered_without_a_text(tmp_path: Path) -> None:
    assert read_by("boxed", tmp_path, completion=None, completion_ids=(), logprobs=()).problems == []


def test_two_games_in_one_place_of_a_group_are_found(tmp_path: Path) -> None:
    first, second, third = (replace(spec, group_id="g") for spec in map(game_spec, ("game-0", "game-1", "game-2")))
    store_run(tmp_path, play(first, replace(second, group_index=1), replace(third, group_index=1)))
    (problem,) = problems(tmp_path)
    assert problem.endswith("game game-2, group_index: stored 1, expected a place that game-1 of group 'g' has not")


def test_an_environment_that_hangs_when_it_is_played_again_does_not_hold_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [game_spec(f"slow-{number}", SLOW, env_kwargs={"turns": 2}) for number in range(3)]
    store_run(tmp_path, play(*slow, game_spec("quick")))

    def hang(env: SlowEnv, action: str) -> None:
        while True:
            pass

    monkeypatch.setattr(SlowEnv, "step", hang)
    monkeypatch.setattr(reenact, "REPLAY_LIMIT_S", 0.2)
    report = verify_run(tmp_path)
    said = f"environment: stored played on, replayed: a call of {SLOW} did not come back within 0.2 s"
    for number, problem in enumerate(report.problems[:2]):
        assert f"game slow-{number}, {said}" in str(problem)
    assert report.problems[2].what == f"game slow-2: not replayed, 2 games of {SLOW} hung before it"
    assert (len(report.problems), report.replayed_episodes) == (3, 1)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_log_probabilities_must_be_finite_unless_the_step_says_so(tmp_path: Path, value: float) -> None:
    def with_logprob(number: int, logprob: float) -> Episode:
        (episode,) = play(game_spec(f"game-{number}"))
        said = replace(episode.steps[0].choice, completion_ids=(1,), logprobs=(logprob,))
        return replace(episode, steps=(replace(episode.steps[0], choice=said), *episode.steps[1:]))

    store_run(tmp_path, [with_logprob(0, -0.5), with_logprob(1, value)])
    assert problems(tmp_path) == []
    (path,) = shards(tmp_path, "steps")

    def unflag(rows: Rows) -> None:
        for row in rows:
            row["logprobs_ok"] = True

    rewrite(path, unflag)
    (problem,) = problems(tmp_path)
    assert f"game game-1: step 0, logprobs: stored {value}, expected finite values, or logprobs_ok false" in problem


@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_removed_step_is_found(tmp_path: Path, place: int) -> None:
    store_run(tmp_path, kuhn_games(3))
    (path,) = shards(tmp_path, "steps")
    turns = sum(row["game_id"] == "train-000001" for row in pq.read_table(path).to_pylist())

    def remove(rows: Rows) -> None:
        del rows[[i for i, row in enumerate(rows) if row["game_id"] == "train-000001"][place]]

    rewrite(path, remove)
    gap = place % turns
    expected = f"game train-000001: step {gap}: {turns - 1} rows in steps/, expected {turns} by turns, from 0 on"
    assert problems(tmp_path) == [f"{path.parent.name.replace('steps', 'episodes')}/{path.name}: {expected}"]


def test_a_removed_episode_is_found(tmp_path: Path) -> None:
    store_run(tmp_path, kuhn_games(3))
    (path,) = shards(tmp_path, "episodes")
    rewrite(path, lambda rows: rows.__delitem__(1))
    (problem,) = problems(tmp_path)
    assert problem.startswith(f"steps/{path.name}: game train-000001: ")
    assert problem.endswith(f" steps, and no row in episodes/{path.name}")


def test_every_damaged_file_is_named_and_the_rest_is_still_checked(tmp_path: Path) -> None:
    store_run(tmp_path, kuhn_games(10), episodes_per_shard=2)
    episodes, steps = shards(tmp_path, "episodes"), shards(tmp_path, "steps")
    os.truncate(steps[0], 1000)
    episodes[1].write_bytes(b"")
    steps[2].unlink()

    def change(rows: Rows) -> None:
        rows[0]["observation"] = "Hello"

    rewrite(steps[4], change)
    report = verify_run(tmp_path)
    wheres = [problem.where for problem in report.problems]
    assert wheres == [f"steps/{steps[0].name}", f"episodes/{episodes[1].name}", f"steps/{steps[2].name}",
                      f"steps/{steps[4].name}"]  # fmt: skip
    whats = [problem.what for problem in report.problems]
    assert "cannot be read" in whats[0]
    assert "cannot be read" in whats[1]
    assert whats[2] == "is missing; episodes/ has a shard of this name, and its games had steps"
    assert report.replayed_episodes == 3
    assert report.notes == ["summary.json was not compared, because games are missing or damaged"]


def test_an_episodes_shard_that_is_missing_is_found_once_the_run_is_over(tmp_path: Path) -> None:
    store_run(tmp_path, kuhn_games(4), episodes_per_shard=2)
    lost = shards(tmp_path, "episodes")[1]
    lost.unlink()
    message = "is missing; steps/ has a shard of this name, with steps of its games"
    assert problems(tmp_path) == [f"episodes/{lost.name}: {message}"]
    (tmp_path / "summary.json").unlink()
    report = verify_run(tmp_path)
    assert report.ok
    assert report.notes == [
        f"steps/{lost.name} has no episodes yet, as a run leaves it that is killed",
        "there is no summary.json: the run goes on, or was killed",
    ]


def test_a_pair_of_shards_that_is_missing_shows_in_the_summary(tmp_path: Path) -> None:
    store_run(tmp_path, kuhn_games(4), episodes_per_shard=2)
    for table in ("episodes", "steps"):
        shards(tmp_path, table)[1].unlink()
    assert problems(tmp_path)[0] == "summary.json: submitted: stored 4, the rows give 2"


def changed(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(summary: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for key in parents:
            summary = summary[int(key) if key.isdigit() else key]  # type: ignore[call-overload]
        summary[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("submitted", 9), "submitted: stored 9, the rows give 4"),
        (changed("lanes/eval/statuses/failed", 1), "lanes.eval.statuses.failed: stored 1, the rows give 0"),
        (changed("environments/0/turns", 1), "environments[0].turns: stored 1, the rows give "),
        (changed("environments/0/players/1/reward_sum", 0.5), "environments[0].players[1].reward_sum: stored 0.5, the"),
        (changed("environments", []), "environments: stored [], the rows give [{'env_id': 'KuhnPoker-v0-train'"),
        (changed("run_id", "run-9"), "run_id: stored 'run-9', the rows give 'run-1'"),
        (changed("summary_version", 99), "has summary_version 99, this release reads 1"),
    ],
)
def test_a_summary_that_does_not_add_up_is_found(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = store_run(tmp_path, kuhn_games(4)) / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))
    (problem,) = problems(tmp_path)
    assert problem.startswith(f"summary.json: {message}")


def test_steps_after_the_end_of_a_game_are_found(tmp_path: Path) -> None:
    (episode,) = kuhn_games(1)
    more = replace(episode.steps[-1], index=len(episode.steps))
    (problem,) = problems(store_run(tmp_path, [replace(episode, steps=(*episode.steps, more))]))
    assert problem.endswith(
        f"game train-000000, step {more.index}, step: stored a move, replayed none: the game is over"
    )


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.CANCELLED, Status.FAILED])
def test_a_game_given_up_while_its_rewards_were_asked_for_is_not_asked_again(status: Status, tmp_path: Path) -> None:
    hangs = {"where": "closed", "hang": True, "turns": 2}
    (episode,) = play(game_spec("hangs", SLOW, env_kwargs=hangs, time_limit_s=0.2))
    assert (episode.status, len(episode.steps)) == (Status.TIMEOUT, 2)
    report = verify_run(store_run(tmp_path, [replace(episode, status=status)]))
    assert (report.problems, report.replayed_steps) == ([], 2)


def test_a_game_that_stopped_before_its_end_is_not_taken_for_a_finished_one(tmp_path: Path) -> None:
    (episode,) = kuhn_games(1)
    (problem,) = problems(store_run(tmp_path, [replace(episode, steps=episode.steps[:-1])]))
    assert problem.endswith("game train-000000, status: stored 'completed', replayed 'a game that is not over'")


def test_a_summary_that_is_cut_off_is_found(tmp_path: Path) -> None:
    path = store_run(tmp_path, kuhn_games(1)) / "summary.json"
    path.write_text(path.read_text()[:100])
    (problem,) = problems(tmp_path)
    assert problem.startswith("summary.json: cannot be read: JSONDecodeError: ")


def test_a_long_text_is_shown_where_it_differs(tmp_path: Path) -> None:
    store_run(tmp_path, kuhn_games(1))

    def change(rows: Rows) -> None:
        rows[0]["observation"] = rows[0]["observation"].replace("Game Rules", "Game Rulez")

    rewrite(shards(tmp_path, "steps")[0], change)
    (problem,) = problems(tmp_path)
    stored, replayed = problem.split("observation: stored ")[1].split(", replayed ")
    assert "Game Rulez" in stored
    assert " (from character " in stored
    assert "Game Rules" in replayed
    assert len(problem) < 300


def test_many_problems_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    (store_run(tmp_path, kuhn_games(30)) / "summary.json").unlink()

    def change(rows: Rows) -> None:
        for row in rows:
            row["rewards"] = [7.0, 7.0]

    rewrite(shards(tmp_path, "episodes")[0], change)
    lines = str(verify_run(tmp_path)).splitlines()
    assert len(lines) == 20 + 4
    assert "and 10 more" in lines
    assert lines[-1] == "not verified: 30 problems, the first on top"


def test_text_that_utf8_cannot_hold_replays(tmp_path: Path) -> None:
    (episode,) = play(game_spec("cut", "Odd-v0", env_kwargs={"rewards": {0: 1}}, max_turns=1))
    said = replace(episode.steps[0].choice, action="\ud83d\\n\0", completion="\ud83d\\n\0")
    moves = (replace(episode.steps[0], choice=said),)
    assert problems(store_run(tmp_path, [replace(episode, steps=moves)])) == []


def test_a_column_that_an_older_shard_lacks_is_not_missed(tmp_path: Path) -> None:
    store_run(tmp_path, kuhn_games(4), episodes_per_shard=2)
    path = shards(tmp_path, "steps")[0]
    pq.write_table(pq.read_table(path).drop_columns(["logprobs_ok", "escaped"]), path)
    assert problems(tmp_path) == []


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no run's dataset at .*episodes: give the folder named with --run-dir"):
        verify_run(tmp_path)


def test_the_command_says_what_it_found_and_exits_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_run(tmp_path, kuhn_games(2))
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verified"
    shards(tmp_path, "steps")[0].write_bytes(b"")
    assert main(["verify", str(tmp_path)]) == 1
    assert "cannot be read" in capsys.readouterr().out.splitlines()[0]
    assert main(["verify", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("selfplay: no run's dataset at ")
