"""What must hold within and between the rows of a game before, and besides, that it plays again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pipeline.reenact import excerpts
from tasks.contracts import AgentSpec, Episode, ModelKind, Step
from tasks.errors import ConfigError, DatasetError, boundary
from tasks.prompts import Parsed, action_extraction


def check_rows(game: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], run_id: str) -> None:
    """What must hold before the rows of one game can be made into an episode, and what an episode cannot show.

    Args:
        game: its row in `episodes`.
        steps: its rows in `steps`, by `step_index`.
        run_id: of the run's games so far.

    Raises:
        DatasetError: names step and field, what is stored and what was expected.
    """
    players = range(game["num_players"])
    if not players:
        raise DatasetError(f"num_players: stored {game['num_players']}, expected at least 1")
    if game["run_id"] != run_id:
        raise DatasetError(f"run_id: stored {game['run_id']!r}, expected {run_id!r}, as the games before it")
    indexes = [step["step_index"] for step in steps]
    if len(indexes) != game["turns"] or indexes != list(range(len(indexes))):
        gap = next((at for at, index in enumerate(indexes) if at != index), len(indexes))
        raise DatasetError(f"step {gap}: {len(indexes)} rows in steps/, expected {game['turns']} by turns, from 0 on")
    if game["offender"] is not None and game["offender"] not in players:
        raise DatasetError(f"offender: stored {game['offender']}, expected 0 to {players[-1]}")
    for step in steps:
        at, logprobs = step["step_index"], step["logprobs"]
        if step["player_id"] not in players:
            raise DatasetError(f"step {at}, player_id: stored {step['player_id']}, expected 0 to {players[-1]}")
        for name in ("prompt_ids", "completion_ids", "logprobs"):
            if None in step[name]:
                raise DatasetError(f"step {at}, {name}: holds null, expected a number in each place")
        if len(logprobs) != len(step["completion_ids"]):
            raise DatasetError(
                f"step {at}, logprobs: {len(logprobs)} values for {len(step['completion_ids'])} completion_ids"
            )
        bad = [value for value in logprobs if not math.isfinite(value)]
        if bad and step["logprobs_ok"] is not False:
            raise DatasetError(f"step {at}, logprobs: stored {bad[0]}, expected finite values, or logprobs_ok false")


def first_inconsistency(episode: Episode) -> str | None:
    """The first step whose answer does not hold together: tokens counted, and the action its completion says.

    Every completion is parsed again as its player's settings have it, unless the extraction cannot be imported here
    (see `unknown_extractions`) or an endpoint answered without a text.

    Returns:
        Step and field, what is stored and what was expected; None where all hold together.
    """
    for step in episode.steps:
        agent = episode.spec.agents[step.player_id]
        wrong = _miscounted(step, agent.model.kind) or _misread(step, agent)
        if wrong is not None:
            return f"step {step.index}, {wrong}"
    return None


def unknown_extractions(episode: Episode) -> Iterator[str]:
    """The names of action extractions that its models' answers were read with and that are not to be had here."""
    for agent in episode.spec.agents:
        if agent.model.kind is not ModelKind.SCRIPTED and _extraction(agent.action_extraction) is None:
            yield agent.action_extraction


def _miscounted(step: Step, kind: ModelKind) -> str | None:
    """Endpoints count their tokens themselves."""
    generated, ids = step.choice.generated_tokens, len(step.choice.completion_ids)
    if kind is ModelKind.SCRIPTED and generated:
        return f"generated_tokens: stored {generated}, expected 0 for a scripted player"
    if kind is ModelKind.ENGINE and generated < ids:
        return f"generated_tokens: stored {generated}, expected at least the {ids} of completion_ids"
    return None


def _misread(step: Step, agent: AgentSpec) -> str | None:
    choice, kind = step.choice, agent.model.kind
    if choice.completion is None:
        return None if kind is ModelKind.API else "completion: stored None, expected a text"
    if kind is ModelKind.SCRIPTED:  # a move is its own completion
        expected = choice.completion, True, ""
    else:
        extract = _extraction(agent.action_extraction)
        if extract is None:
            return None
        with boundary() as caught:
            parsed = extract(choice.completion)
            expected = parsed.action, parsed.format_ok, parsed.feedback
        if caught.error is not None:
            return f"completion: action_extraction {agent.action_extraction!r} raised {caught.summary}"
    stored = choice.action, choice.format_ok, choice.feedback
    if stored == expected:
        return None
    field, one, other = next(
        pair for pair in zip(("action", "format_ok", "feedback"), stored, expected, strict=True) if pair[1] != pair[2]
    )
    found, meant = excerpts(one, other)
    return f"{field}: stored {found}, expected {meant} of its completion"


@cache
def _extraction(name: str) -> Callable[[str], Parsed] | None:
    """None where it cannot be imported: the user's own may be on the workers only."""
    try:
        with boundary():
            return action_extraction(name)
    except ConfigError:
        pass
    return None
