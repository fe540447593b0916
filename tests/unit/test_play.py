"""The game loop: every way a game can end, what is recorded, and that games do not touch each other."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import tests.environments  # noqa: F401  (registers the ones that break)
from tasks.contracts import (
    AdapterRef,
    AgentSpec,
    Completion,
    EngineReply,
    Episode,
    GameSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    SamplingSpec,
    Status,
)
from tasks.errors import AdapterError, EngineDiedError, EngineStartError, PromptTooLongError
from tasks.play import play_game

KUHN, TICTACTOE = "KuhnPoker-v0-train", "TicTacToe-v0-train"


class FakeEngine:
    """Answers with one fixed text, or does what `behave` does instead."""

    def __init__(self, text: str = "\\boxed{[x]}", behave: Callable[[int], Any] | None = None) -> None:
        self.text, self.behave, self.requests = text, behave, 0

    async def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingSpec,
        *,
        n: int,
        seed: int,
        adapter: AdapterRef | None,
    ) -> EngineReply:
        self.requests += 1
        if self.behave is not None:
            await self.behave(self.requests)
        return EngineReply((1, 2), tuple(Completion(self.text, (3,), (-0.5,), "stop") for _ in range(n)))


def on_request(number: int, error: Exception) -> Callable[[int], Any]:
    """Raise `error` at the n-th request."""

    async def behave(request: int) -> None:
        if request == number:
            raise error

    return behave


async def wait_for_ever(request: int) -> None:
    if request == 2:
        await asyncio.Event().wait()


def game_spec(env_id: str = KUHN, seed: int = 1, *, model: str = "scripted:random", **changes: Any) -> GameSpec:
    """A game of two; `model` plays both players, `engine` is the policy."""
    kind = ModelKind.ENGINE if model == "engine" else ModelKind.SCRIPTED
    agents = tuple(
        AgentSpec(player, Role.ACTOR, ModelRef(model, kind), sampling=SamplingSpec() if model == "engine" else None)
        for player in range(2)
    )
    return GameSpec("run", f"game-{seed}", Mode.TRAIN, env_id, 2, seed, agents, **changes)


def played(spec: GameSpec, engine: FakeEngine | None = None) -> Episode:
    return asyncio.run(play_game(spec, engine))  # type: ignore[arg-type]


def timeless(episode: Episode) -> Episode:
    """The episode without its times, which no two games share."""
    steps = tuple(dataclasses.replace(step, latency_s=0.0) for step in episode.steps)
    return dataclasses.replace(episode, steps=steps, started_at=0.0, finished_at=0.0)


def test_a_completed_game_records_what_was_seen_said_and_earned() -> None:
    before = time.time()
    spec = game_spec(TICTACTOE, model="scripted:first")
    episode = asyncio.run(play_game(spec, None, worker="tcp://somewhere:1"))
    assert (episode.status, episode.rewards, episode.offender) == (Status.COMPLETED, (1.0, -1.0), None)
    assert episode.reason == "Player 0 has won!"
    assert [step.index for step in episode.steps] == list(range(7))
    assert [step.player_id for step in episode.steps] == [0, 1, 0, 1, 0, 1, 0]
    assert [step.choice.action for step in episode.steps] == [f"[{cell}]" for cell in range(7)]
    assert "Available Moves: '[6]', '[7]', '[8]'" in episode.steps[-1].observation
    assert not any(step.illegal for step in episode.steps)
    assert {step.reward for step in episode.steps} == {None}
    assert all(step.latency_s >= 0 for step in episode.steps)
    assert before <= episode.started_at <= episode.finished_at <= time.time()
    assert (episode.worker, episode.spec) == ("tcp://somewhere:1", spec)
    assert len(episode.player_info) == 2
    trajectory = episode.trajectory(1)
    assert (trajectory.final_reward, len(trajectory.steps)) == (-1.0, 3)
    assert pickle.loads(pickle.dumps(episode)) == episode


def test_an_illegal_move_that_ends_the_game() -> None:
    episode = played(game_spec(model="engine", error_allowance=1), FakeEngine("\\boxed{[jump]}"))
    assert (episode.status, episode.offender, episode.rewards) == (Status.ILLEGAL_MOVE, 1, (1.0, -1.0))
    assert [step.illegal for step in episode.steps] == [True, True]
    assert episode.reason == "Action must be [Check], [Bet], [Call], or [Fold]."
    assert episode.steps[0].choice.completion_ids == (3,)


def test_an_illegal_move_that_is_mended_is_only_a_step() -> None:
    engine = FakeEngine("\\boxed{[jump]}")

    async def mend(request: int) -> None:
        engine.text = "\\boxed{[jump]}" if request == 1 else "\\boxed{[check]}"

    engine.behave = mend
    episode = played(game_spec(model="engine"), engine)
    assert (episode.status, episode.offender) == (Status.COMPLETED, None)
    assert [step.illegal for step in episode.steps] == [True] + [False] * 6


def test_the_turn_cap_truncates() -> None:
    episode = played(game_spec(TICTACTOE, model="scripted:first", max_turns=6))
    assert (episode.status, episode.rewards, episode.player_info) == (Status.TRUNCATED, None, ())
    assert len(episode.steps) == 6
    assert episode.reason == "max_turns=6 reached before the game's end"
    assert episode.trajectory(0).final_reward is None


def test_a_game_that_ends_on_the_very_move_of_the_cap_keeps_its_result() -> None:
    episode = played(game_spec(TICTACTOE, model="scripted:first", max_turns=7))
    assert (episode.status, episode.rewards, len(episode.steps)) == (Status.COMPLETED, (1.0, -1.0), 7)


def test_a_prompt_that_does_not_fit_is_an_overflow() -> None:
    engine = FakeEngine("\\boxed{[check]}", on_request(3, PromptTooLongError("prompt of 300 tokens, 256 fit")))
    episode = played(game_spec(model="engine"), engine)
    assert (episode.status, episode.reason, episode.rewards) == (Status.OVERFLOW, "prompt of 300 tokens, 256 fit", None)
    assert len(episode.steps) == 2


def test_a_time_limit_ends_the_game_with_its_steps() -> None:
    engine = FakeEngine("\\boxed{[check]}", wait_for_ever)
    episode = played(game_spec(model="engine", time_limit_s=0.05), engine)
    assert (episode.status, episode.rewards, len(episode.steps)) == (Status.TIMEOUT, None, 1)
    assert episode.reason == "time_limit_s=0.05 passed before the game's end"


def test_a_time_limit_cuts_games_that_never_wait() -> None:
    episode = played(game_spec("Endless-v0", time_limit_s=0.05))
    assert episode.status is Status.TIMEOUT
    assert len(episode.steps) > 1


def test_a_cancelled_game_returns_what_it_has() -> None:
    async def cancelled_while_waiting() -> tuple[Episode, int]:
        engine = FakeEngine("\\boxed{[check]}", wait_for_ever)
        game = asyncio.create_task(play_game(game_spec(model="engine"), engine))  # type: ignore[arg-type]
        while engine.requests < 2:
            await asyncio.sleep(0.001)
        game.cancel()
        return await game, game.cancelling()

    episode, pending_cancels = asyncio.run(cancelled_while_waiting())
    assert (episode.status, episode.rewards, len(episode.steps)) == (Status.CANCELLED, None, 1)
    assert episode.reason == "cancelled while it was played"
    assert pending_cancels == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AdapterError("rank 16, expected 8"), "AdapterError: rank 16, expected 8"),
        (RuntimeError("no idea"), "RuntimeError: no idea"),
        (TimeoutError("a socket's"), "TimeoutError: a socket's"),
    ],
)
def test_what_an_agent_raises_fails_the_game(error: Exception, reason: str) -> None:
    episode = played(game_spec(model="engine"), FakeEngine("\\boxed{[check]}", on_request(2, error)))
    assert (episode.status, episode.reason, len(episode.steps)) == (Status.FAILED, reason, 1)


def test_what_an_environment_raises_fails_the_game_and_keeps_its_steps() -> None:
    episode = played(game_spec("Broken-v0"))
    assert (episode.status, episode.rewards, len(episode.steps)) == (Status.FAILED, None, 1)
    assert episode.reason == (
        "EnvironmentFault: Broken-v0 could not be stepped: ZeroDivisionError: nobody tested this. "
        "The game ends as failed; if it keeps happening, leave this environment out."
    )


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (game_spec("Kuhn-v0"), "EnvironmentFault: unknown env_id 'Kuhn-v0'"),
        (game_spec(model="scripted:best"), "ConfigError: unknown scripted player 'best'"),
        (game_spec(model="engine"), "ConfigError: player 0 is model 'engine', but this worker has no engine"),
    ],
)
def test_a_game_that_cannot_begin_fails(spec: GameSpec, reason: str) -> None:
    episode = played(spec)
    assert (episode.status, episode.steps) == (Status.FAILED, ())
    assert episode.reason.startswith(reason)


@pytest.mark.parametrize("error", [EngineDiedError("core gone"), EngineStartError("no memory")])
def test_a_dead_engine_is_raised_for_the_driver_to_play_again(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        played(game_spec(model="engine"), FakeEngine("\\boxed{[check]}", on_request(2, error)))


def test_the_same_spec_is_the_same_game_alone_or_among_a_thousand() -> None:
    specs = [game_spec(seed=seed) for seed in range(1000)]

    async def together() -> list[Episode]:
        return await asyncio.gather(*(play_game(spec, None) for spec in specs))

    crowd = asyncio.run(together())
    assert {episode.status for episode in crowd} == {Status.COMPLETED}
    for index in range(0, 1000, 10):
        assert timeless(played(specs[index])) == timeless(crowd[index])
    assert len({tuple(step.observation for step in episode.steps) for episode in crowd}) > 900


def test_a_game_that_never_waits_does_not_hold_up_the_others() -> None:
    async def both() -> tuple[Episode, Episode]:
        # Found quick, its calls run on the loop from here on.
        await play_game(game_spec("Endless-v0", max_turns=50), None)
        endless = asyncio.create_task(play_game(game_spec("Endless-v0", max_turns=10**9), None))
        await asyncio.sleep(0.2)  # made in a thread
        for _ in range(20):
            finished = await play_game(game_spec(), None)
        endless.cancel()
        return await endless, finished

    endless, finished = asyncio.run(both())
    assert (endless.status, finished.status) == (Status.CANCELLED, Status.COMPLETED)
    assert len(endless.steps) > 1


def test_games_of_a_group_share_the_deal_but_not_what_is_sampled() -> None:
    group = [played(game_spec(seed=7, group_index=index)) for index in range(8)]
    assert len({episode.steps[0].observation for episode in group}) == 1
    assert len({tuple(step.choice.action for step in episode.steps) for episode in group}) > 1
