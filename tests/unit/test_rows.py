"""Rows back into values: what was stored is what comes back, and what is no such value is refused by its column."""

from __future__ import annotations

import json
import re
from io import BytesIO
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.contracts import (
    AdapterRef,
    AgentSpec,
    Choice,
    Episode,
    GameSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    SamplingSpec,
    Status,
    Step,
)
from tasks.errors import DatasetError
from tasks.rows import episode_from_rows, spec_from_row
from tasks.schemas import EPISODE_SCHEMA, STEP_SCHEMA
from tasks.shards import episodes_table, steps_table
from tests.unit.example_episodes import cancelled_episode, full_episode

text = st.text(st.characters(codec=None), max_size=8)  # lone surrogates and NUL among them
count = st.integers(0, 2**31 - 1)
setting = st.integers(-(2**63), 2**63 - 1)
real = st.floats(allow_nan=False)
json_value = st.recursive(
    st.none() | st.booleans() | setting | real.filter(lambda value: abs(value) < float("inf")) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
info = st.dictionaries(text, json_value, max_size=3)
samplings = st.builds(
    SamplingSpec, real.filter(lambda value: abs(value) < float("inf")), st.just(1.0), setting, setting,
    st.lists(text, max_size=2).map(tuple),
)  # fmt: skip
models = st.builds(
    ModelRef, text, st.sampled_from([ModelKind.ENGINE, ModelKind.SCRIPTED]), st.none() | setting,
    st.none() | st.builds(AdapterRef, text, text),
)  # fmt: skip
choices = st.builds(
    Choice,
    action=text,
    completion=st.none() | text,
    format_ok=st.booleans(),
    feedback=text,
    prompt_ids=st.lists(count, max_size=3).map(tuple),
    completion_ids=st.lists(count, max_size=3).map(tuple),
    logprobs=st.lists(st.floats(width=32, allow_nan=False), max_size=3).map(tuple),
    finish_reason=st.none() | st.sampled_from(["stop", "length"]),
    token_limit=st.none() | count,
    generated_tokens=count,
    cached_tokens=count,
    votes=st.none() | st.dictionaries(text, count, max_size=2),
    confidence=st.none() | real,
    entropy=st.none() | real,
)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """Any episode that the contracts allow, whether or not a game could give it."""
    players = draw(st.integers(1, 3))
    agent = st.builds(
        AgentSpec, st.just(0), st.sampled_from(Role), models, text, text, text, st.none() | samplings
    )  # fmt: skip
    agents = draw(st.lists(agent, min_size=players, max_size=players))
    spec = GameSpec(
        run_id=draw(text),
        game_id=draw(text),
        mode=draw(st.sampled_from(Mode)),
        env_id=draw(text),
        num_players=players,
        seed=draw(st.integers(0, 2**63 - 1)),
        agents=tuple(AgentSpec(**{**vars(agent), "player_id": player}) for player, agent in enumerate(agents)),
        group_id=draw(text),
        group_index=draw(count),
        attempt=draw(count),
        env_kwargs=draw(info),
        error_allowance=draw(st.none() | setting),
        max_turns=draw(st.none() | setting),
        time_limit_s=draw(st.none() | real),
    )
    steps = st.builds(
        Step, st.just(0), st.integers(0, players - 1), text, choices, st.booleans(), info.map(json.dumps),
        st.none() | real, real,
    )  # fmt: skip
    by_player = {"min_size": players, "max_size": players}
    return Episode(
        spec=spec,
        status=draw(st.sampled_from(Status)),
        steps=tuple(
            Step(**{**vars(step), "index": index}) for index, step in enumerate(draw(st.lists(steps, max_size=3)))
        ),
        rewards=draw(st.none() | st.lists(st.none() | real, **by_player).map(tuple)),
        offender=draw(st.none() | st.integers(0, players - 1)),
        reason=draw(text),
        player_info=draw(st.just(()) | st.lists(info.map(json.dumps), **by_player).map(tuple)),
        started_at=draw(st.integers(0, 2**32).map(float)),
        finished_at=draw(st.integers(0, 2**32).map(float)),
        worker=draw(text),
    )


def through_parquet(table: Any) -> list[dict[str, Any]]:
    file = BytesIO()
    pq.write_table(table, file)
    return pq.read_table(file).to_pylist()


@settings(max_examples=60, deadline=None)
@given(st.lists(episodes(), min_size=1, max_size=3))
def test_whatever_was_stored_comes_back(stored: list[Episode]) -> None:
    games, steps = episodes_table(stored), steps_table(stored)
    assert games.schema.equals(EPISODE_SCHEMA, check_metadata=True)
    assert steps.schema.equals(STEP_SCHEMA, check_metadata=True)
    rest = iter(through_parquet(steps))
    read = [episode_from_rows(row, [next(rest) for _ in range(row["turns"])]) for row in through_parquet(games)]
    assert read == stored


@pytest.mark.parametrize("episode", [full_episode(), cancelled_episode()], ids=["full", "cancelled"])
def test_the_game_spec_can_be_rebuilt_from_an_episode_row(episode: Episode) -> None:
    assert spec_from_row(episodes_table([episode]).to_pylist()[0]) == episode.spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"status": "won"},
            "column 'status' holds 'won', expected one of completed, illegal_move, truncated, overflow",
        ),
        ({"mode": "test"}, "column 'mode' holds 'test', expected one of train, eval"),
        ({"role": ["actor"]}, "column 'role' holds 1 values for 2 players, expected one each"),
        ({"num_players": 0}, "column 'num_players' holds 0, expected at least 1"),
        ({"role": ["actor", None]}, "column 'role' holds ['actor', None], expected a text for each player"),
        ({"escaped": ["reason", "x"]}, "column 'escaped' holds ['reason', 'x'], of which 'x' is no column"),
        ({"rewards": [1.0, 2.0, 3.0]}, "column 'rewards' holds 3 values for 2 players, expected one each"),
        ({"player_info": ["{}"]}, "column 'player_info' holds 1 values for 2 players, expected one each"),
        ({"env_kwargs": "{"}, "column 'env_kwargs' holds '{', expected a JSON object: Expecting property name"),
        ({"env_kwargs": "[1]"}, "column 'env_kwargs' holds '[1]', expected a JSON object"),
        ({"sampling": ['{"top_p": 1.0}', None]}, "expected the keys temperature, top_p, top_k, max_tokens, stop"),
    ],
)
def test_a_value_that_a_column_cannot_have_is_refused(change: dict[str, Any], message: str) -> None:
    row = {**episodes_table([full_episode()]).to_pylist()[0], **change}
    with pytest.raises(DatasetError, match=re.escape(message)):
        episode_from_rows(row, [])


def test_log_probabilities_that_are_not_finite_come_back() -> None:
    odd = Choice("", "", True, completion_ids=(1, 2), logprobs=(float("nan"), float("-inf")))
    episode = full_episode(steps=(Step(0, 0, "", odd, False),))
    read = episode_from_rows(episodes_table([episode]).to_pylist()[0], through_parquet(steps_table([episode])))
    assert list(map(str, read.steps[0].choice.logprobs)) == ["nan", "-inf"]
