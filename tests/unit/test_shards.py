"""The dataset's format: what an episode becomes, what is refused, what a reader may rely on."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import DatasetError
from tasks.schemas import EPISODE_SCHEMA, STEP_SCHEMA, VERSION_KEY
from tasks.shards import episodes_table, read_episodes, read_steps, steps_table, unescaped, write_shard
from tests.unit.example_episodes import SAID, cancelled_episode, full_episode


def write_run(run_dir: Path, episodes: pa.Table, steps: pa.Table, name: str = "00000-aa.parquet") -> None:
    for table, folder in ((episodes, "episodes"), (steps, "steps")):
        (run_dir / "replay" / folder).mkdir(parents=True, exist_ok=True)
        write_shard(table, run_dir / "replay" / folder / name)


def test_an_episode_row_says_how_the_game_ended() -> None:
    row = episodes_table([full_episode()]).to_pylist()[0]
    expected = {
        "status": "illegal_move",
        "reason": "Player 1 made an invalid move.",
        "offender": 1,
        "rewards": [1.0, -1.0],
        "outcome": ["win", "loss"],
        "turns": 2,
        "player_info": ['{"turns": 1}', '{"turns": 1}'],
        "started_at": datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC),
        "finished_at": datetime(2023, 11, 14, 22, 13, 21, 500_000, tzinfo=UTC),
        "duration_s": 1.25,
        "worker": "tcp://127.0.0.1:40001",
    }
    assert {name: row[name] for name in expected} == expected


def test_a_game_that_never_began_has_a_row_and_no_steps() -> None:
    row = episodes_table([cancelled_episode()]).to_pylist()[0]
    unset = ("rewards", "outcome", "offender", "started_at", "finished_at", "duration_s")
    assert [row[name] for name in unset] == [None] * len(unset)
    assert (row["turns"], row["status"], row["player_info"], row["worker"]) == (0, "cancelled", [], "")
    assert steps_table([cancelled_episode()]).num_rows == 0


def test_a_player_without_a_reward_is_null_and_the_others_stay() -> None:
    row = episodes_table([full_episode(rewards=(1.0, None), offender=None)]).to_pylist()[0]
    assert row["rewards"] == [1.0, None]
    assert steps_table([full_episode(rewards=(1.0, None))])["final_reward"].to_pylist() == [1.0, None]


def test_a_step_row_holds_what_was_seen_said_parsed_and_earned() -> None:
    said, answered = steps_table([full_episode()]).to_pylist()
    assert said == {
        "run_id": "run-1",
        "game_id": "game-full",
        "attempt": 1,
        "env_id": "KuhnPoker-v0-train",
        "mode": "train",
        "step_index": 0,
        "player_id": 0,
        "role": "actor",
        "model_uid": "policy@3",
        "policy_version": 3,
        "observation": "Your card: K",
        "prompt_ids": [1, 2, 3],
        "completion": "I have a king: \\boxed{bet}",
        "completion_ids": [4, 5],
        "logprobs": [-0.5, -0.25],
        "logprobs_ok": True,
        "action": "[bet]",
        "format_ok": True,
        "feedback": None,
        "illegal": False,
        "finish_reason": "stop",
        "action_sampler": "majority",
        "votes": '{"[bet]": 2, "[check]": 1}',
        "confidence": 2 / 3,
        "entropy": 0.6365,
        "generated_tokens": 6,
        "cached_tokens": 2,
        "info": '{"pot": 2}',
        "reward": 0.5,
        "final_reward": 1.0,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "max_tokens": 16,
        "token_limit": 12,
        "stop": ["\n\n"],
        "latency_s": 0.125,
        "escaped": None,
    }
    unset = ("policy_version", "finish_reason", "votes", "confidence", "entropy", "reward")
    scripted = ("temperature", "top_p", "top_k", "max_tokens", "token_limit", "stop")
    assert [answered[name] for name in unset + scripted] == [None] * len(unset + scripted)
    assert (answered["format_ok"], answered["feedback"]) == (False, "no move found; expected [move].")
    assert (answered["illegal"], answered["final_reward"], answered["prompt_ids"]) == (True, -1.0, [])


def test_steps_of_several_games_keep_their_order() -> None:
    table = steps_table([full_episode("b"), cancelled_episode(), full_episode("a")])
    assert table["game_id"].to_pylist() == ["b", "b", "a", "a"]
    assert table["step_index"].to_pylist() == [0, 1, 0, 1]


def test_the_tables_follow_the_schemas_even_when_empty() -> None:
    for table, schema in ((episodes_table([]), EPISODE_SCHEMA), (steps_table([]), STEP_SCHEMA)):
        assert table.schema.equals(schema, check_metadata=True)


# Halves of surrogate pairs, and what their escapes are made of.
any_text = st.lists(st.characters(codec=None) | st.sampled_from(["\\", "\\ud800", "\ud83d", "u", "\0"])).map("".join)


@given(any_text)
def test_any_text_can_be_stored_and_had_again(text: str) -> None:
    step = replace(SAID, observation=text, choice=replace(SAID.choice, completion=text))
    episode = full_episode(steps=(step,), reason=text, player_info=(text, ""))
    cut = any("\ud800" <= character <= "\udfff" for character in text)
    (row,) = steps_table([episode]).to_pylist()
    assert row["escaped"] == (["observation", "completion"] if cut else None)
    assert row["completion"] == text or cut
    assert unescaped(row["completion"]) == text or not cut
    (row,) = episodes_table([episode]).to_pylist()
    assert row["escaped"] == (["reason", "player_info"] if cut else None)
    assert row["player_info"] == [text, ""] or cut
    assert unescaped(row["player_info"][0]) == text or not cut


def test_a_cut_emoji_is_escaped_in_its_row_alone_and_the_row_says_so() -> None:
    said = "\U0001f600 and half: \ud83d, \\boxed{[bet]}"
    games = [full_episode("a"), full_episode("b", steps=(replace(SAID, choice=replace(SAID.choice, completion=said)),))]
    table = steps_table(games).select(["completion", "escaped"])
    assert table.to_pylist()[1:] == [
        {"completion": "[fold]", "escaped": None},
        {"completion": "\U0001f600 and half: \\ud83d, \\\\boxed{[bet]}", "escaped": ["completion"]},
    ]


def test_an_answer_without_a_text_stays_apart_from_an_empty_one(tmp_path: Path) -> None:
    steps = tuple(replace(SAID, choice=replace(SAID.choice, completion=text)) for text in (None, "", "a\0b", "\ufffd"))
    write_run(tmp_path, episodes_table([full_episode(steps=steps)]), steps_table([full_episode(steps=steps)]))
    assert read_steps(tmp_path, columns=["completion"])["completion"].to_pylist() == [None, "", "a\0b", "\ufffd"]


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_a_log_probability_that_is_not_finite_is_kept_and_flagged(value: float) -> None:
    odd = replace(SAID, choice=replace(SAID.choice, logprobs=(-0.5, value)))
    table = steps_table([full_episode(steps=(odd, SAID))])
    assert table["logprobs"].type == pa.list_(pa.float32())
    assert table["logprobs_ok"].to_pylist() == [False, True]
    assert str(table["logprobs"].to_pylist()[0][1]) == str(value)


def test_log_probabilities_that_are_missing_are_flagged() -> None:
    short = replace(SAID, choice=replace(SAID.choice, logprobs=(-0.5,)))
    assert steps_table([full_episode(steps=(short,))])["logprobs_ok"].to_pylist() == [False]


def test_a_value_of_a_wrong_type_is_refused_by_its_column() -> None:
    with pytest.raises(DatasetError, match=r"column 'worker' takes string, got a value that is not"):
        episodes_table([full_episode(worker=5)])
    with pytest.raises(DatasetError, match=r"column 'reward' takes double, got a value that is not"):
        steps_table([full_episode(steps=(replace(SAID, reward="high"),))])


def test_lists_of_numbers_have_no_dictionary_and_no_statistics(tmp_path: Path) -> None:
    write_shard(steps_table([full_episode()]), tmp_path / "steps.parquet")
    group = pq.ParquetFile(tmp_path / "steps.parquet").metadata.row_group(0)
    columns = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
    plain = {name for name, column in columns.items() if not column.has_dictionary_page}
    assert plain >= {"prompt_ids.list.element", "completion_ids.list.element", "logprobs.list.element"}
    assert plain.isdisjoint({"run_id", "game_id", "observation", "stop.list.element"})
    assert not any(columns[name].is_stats_set for name in plain if name.endswith(".element"))
    assert columns["game_id"].is_stats_set and columns["step_index"].is_stats_set


def test_a_null_where_a_value_must_be_is_refused_by_its_column_and_row() -> None:
    with pytest.raises(DatasetError, match=r"column 'worker' takes no null, got one in row 1: give every episode"):
        episodes_table([full_episode(), full_episode(worker=None)])


def test_shards_read_back_as_they_were_written(tmp_path: Path) -> None:
    first, second = [full_episode("a"), cancelled_episode("b")], [full_episode("c")]
    write_run(tmp_path, episodes_table(first), steps_table(first), "00000-aa.parquet")
    write_run(tmp_path, episodes_table(second), steps_table(second), "00001-aa.parquet")
    assert read_episodes(tmp_path).equals(episodes_table(first + second), check_metadata=True)
    assert read_steps(tmp_path).equals(steps_table(first + second), check_metadata=True)
    assert read_steps(tmp_path, game_id="c").equals(steps_table(second))
    assert read_steps(tmp_path, columns=["action"]).to_pylist() == [{"action": "[bet]"}, {"action": "[fold]"}] * 2


def test_a_shard_is_compressed_and_nothing_temporary_stays(tmp_path: Path) -> None:
    write_run(tmp_path, episodes_table([full_episode()]), steps_table([full_episode()]))
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["00000-aa.parquet"] * 2
    metadata = pq.read_metadata(tmp_path / "replay/steps/00000-aa.parquet")
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_readers_do_not_see_a_shard_that_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, episodes_table([full_episode()]), steps_table([full_episode()]))
    seen: list[int] = []

    def look(descriptor: int) -> None:
        assert len(list((tmp_path / "replay/episodes").iterdir())) == 2
        seen.extend((read_episodes(tmp_path).num_rows, pq.read_table(tmp_path / "replay/episodes").num_rows))
        monkeypatch.undo()

    monkeypatch.setattr("tasks.shards.os.fsync", look)
    write_shard(episodes_table([full_episode("b")]), tmp_path / "replay/episodes/00001-aa.parquet")
    assert seen == [1, 1]
    assert read_episodes(tmp_path).num_rows == 2


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "the disk is full: free space on it, or give another run folder"),
        (errno.EROFS, "the file system is read-only: mount it for writing"),
        (errno.EIO, "check that the folder exists and can be written to"),
    ],
)
def test_a_write_that_fails_says_where_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(target))

    monkeypatch.setattr("tasks.shards.os.replace", refuse)
    path = tmp_path / "a.parquet"
    with pytest.raises(DatasetError) as caught:
        write_shard(episodes_table([]), path)
    for part in (f"cannot write shard {path}", f"[Errno {code}]", os.strerror(code), advice):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_writing_where_no_folder_is_reports_the_first_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=r"cannot write shard .*file/a\.parquet: \[Errno 20\] Not a directory"):
        write_shard(episodes_table([]), tmp_path / "file" / "a.parquet")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for read in (read_episodes, read_steps):
        with pytest.raises(DatasetError, match=r"no run's dataset at .*replay.*: give the folder named with --run-dir"):
            read(tmp_path)


def test_a_run_before_its_first_shard_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "replay/episodes").mkdir(parents=True)
    table = read_episodes(tmp_path)
    assert (table.num_rows, table.schema.names) == (0, EPISODE_SCHEMA.names)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, episodes_table([full_episode()]), steps_table([full_episode()]))
    (tmp_path / "replay/steps/00000-aa.parquet").write_bytes(b"PAR1")
    with pytest.raises(DatasetError, match=r"shard .*steps/00000-aa\.parquet cannot be read: .*; copy it again"):
        read_steps(tmp_path)


@pytest.mark.parametrize("metadata", [{VERSION_KEY: b"2"}, {VERSION_KEY: b"0"}, None], ids=["newer", "no", "none"])
def test_a_schema_version_that_is_not_known_is_refused(tmp_path: Path, metadata: dict[bytes, bytes] | None) -> None:
    episodes = episodes_table([full_episode()]).replace_schema_metadata(metadata)
    write_run(tmp_path, episodes, steps_table([full_episode()]))
    with pytest.raises(
        DatasetError, match=r"has schema version (2|0|none), this release reads up to 1: read it with the release"
    ):
        read_episodes(tmp_path)


def test_shards_of_an_older_version_and_of_this_one_are_one_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = ["entropy", "logprobs_ok", "escaped"]
    write_run(tmp_path, episodes_table([full_episode("old")]), steps_table([full_episode("old")]).drop_columns(later))
    monkeypatch.setattr("tasks.shards.SCHEMA_VERSION", 2)
    new = steps_table([full_episode("new")]).replace_schema_metadata({VERSION_KEY: b"2"})
    write_run(tmp_path, episodes_table([full_episode("new")]), new, "00001-aa.parquet")
    table = read_steps(tmp_path)
    assert table["game_id"].to_pylist() == ["old", "old", "new", "new"]
    assert table["entropy"].to_pylist() == [None, None, 0.6365, None]
    assert table["logprobs_ok"].to_pylist() == [None, None, True, True]
    assert table.schema.equals(STEP_SCHEMA, check_metadata=True)


def test_a_shard_without_a_column_that_every_version_has_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, episodes_table([full_episode()]).drop_columns(["seed"]), steps_table([full_episode()]))
    with pytest.raises(DatasetError, match=r"has nothing in column 'seed', expected int64: it was not written by"):
        read_episodes(tmp_path)


def test_a_shard_with_another_type_in_a_column_is_refused(tmp_path: Path) -> None:
    games = episodes_table([full_episode()])
    place = games.schema.get_field_index("seed")
    write_run(tmp_path, games.set_column(place, "seed", pa.array([1.5])), steps_table([full_episode()]))
    with pytest.raises(DatasetError, match=r"has double in column 'seed', expected int64: it was not written by"):
        read_episodes(tmp_path)


def test_a_byte_that_changed_on_the_disk_is_found(tmp_path: Path) -> None:
    write_run(tmp_path, episodes_table([full_episode()]), steps_table([full_episode()]))
    path = tmp_path / "replay/episodes/00000-aa.parquet"
    column = pq.read_metadata(path).row_group(0).column(EPISODE_SCHEMA.get_field_index("worker"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"shard .*episodes/00000-aa\.parquet cannot be read: .*; copy it again"):
        read_episodes(tmp_path)


def test_the_rest_is_read_once_a_damaged_pair_is_moved_away(tmp_path: Path) -> None:
    for number in range(3):
        episodes = [full_episode(f"game-{number}")]
        write_run(tmp_path, episodes_table(episodes), steps_table(episodes), f"{number:05d}-aa.parquet")
    for table in ("episodes", "steps"):
        path = tmp_path / "replay" / table / "00001-aa.parquet"
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(
            DatasetError, match=rf"{table}/00001-aa\.parquet cannot be read: .*or move it away together"
        ):
            {"episodes": read_episodes, "steps": read_steps}[table](tmp_path)
    for table in ("episodes", "steps"):
        (tmp_path / "replay" / table / "00001-aa.parquet").rename(tmp_path / f"{table}.parquet")
    assert read_episodes(tmp_path)["game_id"].to_pylist() == ["game-0", "game-2"]
    assert read_steps(tmp_path).num_rows == 4
