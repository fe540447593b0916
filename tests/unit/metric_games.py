"""Small games for the tests of metrics."""

from __future__ import annotations

from typing import Any

from tasks.contracts import (
    AgentSpec,
    Choice,
    EngineFigures,
    EngineState,
    Episode,
    GameSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    Status,
    Step,
)

POLICY = ModelRef("policy@0", ModelKind.ENGINE, policy_version=0)
RANDOM = ModelRef("scripted:random", ModelKind.SCRIPTED)


def step(
    player_id: int,
    *,
    tokens: int = 3,
    prompt: int = 5,
    stopped: str | None = "stop",
    ok: bool = True,
    bad: bool = False,
    **choice: Any,
) -> Step:
    """One decision of an engine's model; `choice` sets further fields of it."""
    ids = {"prompt_ids": tuple(range(prompt)), "completion_ids": tuple(range(tokens))}
    chosen = Choice("[a]", "a", format_ok=ok, finish_reason=stopped, **ids, **choice)
    return Step(index=0, player_id=player_id, observation="?", choice=chosen, illegal=bad)


def scripted(player_id: int, *, ok: bool = True, bad: bool = False) -> Step:
    """One decision of a scripted player, which has no tokens and no reason to stop."""
    return step(player_id, tokens=0, prompt=0, stopped=None, ok=ok, bad=bad)


def game(models: tuple[ModelRef, ...] = (POLICY, POLICY), *, mode: Mode = Mode.TRAIN, **ending: Any) -> Episode:
    """A game of `Kuhn`; the policy's players act, all others are opponents; `ending` sets fields of the episode."""
    roles = [Role.ACTOR if model is POLICY else Role.OPPONENT for model in models]
    agents = tuple(AgentSpec(i, role, model) for i, (role, model) in enumerate(zip(roles, models, strict=True)))
    spec = GameSpec("run", "game", mode, "Kuhn", len(models), seed=1, agents=agents)
    values: dict[str, Any] = {"status": Status.COMPLETED, "rewards": (1.0, -1.0), "steps": (step(0), step(1))}
    return Episode(spec, **{**values, **ending})


def engine(worker: str = "tcp://a:1", state: EngineState = EngineState.READY, **figures: Any) -> EngineFigures:
    """A report of the engine on `worker`."""
    return EngineFigures(worker, state, **figures)
