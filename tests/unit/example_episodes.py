"""Episodes for the tests of what is stored: one that uses every field, and plain ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

POLICY = AgentSpec(
    player_id=0,
    role=Role.ACTOR,
    model=ModelRef("policy@3", ModelKind.ENGINE, 3, AdapterRef("policy@3", "/adapters/3")),
    action_sampler="majority",
    sampling=SamplingSpec(temperature=0.7, top_p=0.9, top_k=20, max_tokens=16, stop=("\n\n",)),
)
RANDOM = AgentSpec(player_id=1, role=Role.OPPONENT, model=ModelRef("scripted:random", ModelKind.SCRIPTED))

SAID = Step(
    index=0,
    player_id=0,
    observation="Your card: K",
    choice=Choice(
        action="[bet]",
        completion="I have a king: \\boxed{bet}",
        format_ok=True,
        prompt_ids=(1, 2, 3),
        completion_ids=(4, 5),
        logprobs=(-0.5, -0.25),
        finish_reason="stop",
        token_limit=12,
        generated_tokens=6,
        cached_tokens=2,
        votes={"[bet]": 2, "[check]": 1},
        confidence=2 / 3,
        entropy=0.6365,
    ),
    illegal=False,
    info='{"pot": 2}',
    reward=0.5,
    latency_s=0.125,
)
ANSWERED = Step(
    index=1,
    player_id=1,
    observation="Player 0 bets",
    choice=Choice(action="[fold]", completion="[fold]", format_ok=False, feedback="no move found; expected [move]."),
    illegal=True,
)


def full_episode(game_id: str = "game-full", **changes: Any) -> Episode:
    """A game of two players whose every field is set, ended by player 1's illegal move."""
    spec = GameSpec(
        run_id="run-1",
        game_id=game_id,
        mode=Mode.TRAIN,
        env_id="KuhnPoker-v0-train",
        num_players=2,
        seed=2**63 - 1,
        agents=(POLICY, RANDOM),
        group_id="group-1",
        group_index=1,
        attempt=1,
        env_kwargs={"max_rounds": 1, "names": ["a", "b"]},
        error_allowance=1,
        max_turns=10,
        time_limit_s=30.0,
    )
    values: dict[str, Any] = {
        "status": Status.ILLEGAL_MOVE,
        "steps": (SAID, ANSWERED),
        "rewards": (1.0, -1.0),
        "offender": 1,
        "reason": "Player 1 made an invalid move.",
        "player_info": ('{"turns": 1}', '{"turns": 1}'),
        "started_at": 1_700_000_000.25,
        "finished_at": 1_700_000_001.5,
        "worker": "tcp://127.0.0.1:40001",
    }
    return Episode(spec=spec, **{**values, **changes})


def cancelled_episode(game_id: str = "game-cancelled") -> Episode:
    """A game that never began."""
    agents = (replace(RANDOM, player_id=0),)
    spec = GameSpec("run-1", game_id, Mode.EVAL, "Sudoku-v0", num_players=1, seed=7, agents=agents)
    return Episode(spec=spec, status=Status.CANCELLED, reason="the run was stopped")
