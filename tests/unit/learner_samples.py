"""Recorded steps, sequences and learners for the tests of the learning side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.replay import TrainingStep
from tasks.contracts import AgentSpec, Choice, ModelKind, ModelRef, Role, SamplingSpec, Status, Step
from tasks.learner_contracts import LearnerBatch, LearnerSample, LearnerSpec
from tests.tiny_model import TARGET_MODULES


def recorded_step(
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    index: int = 0,
    player_id: int = 0,
    game_id: str = "game",
    version: int | None = 0,
    reward: float = 1.0,
) -> TrainingStep:
    """A step as the buffers hold it; the log-probability of token t is -t/100."""
    choice = Choice(
        action="",
        completion="",
        format_ok=True,
        prompt_ids=tuple(prompt),
        completion_ids=tuple(completion),
        logprobs=tuple(-token / 100 for token in completion),
    )
    return TrainingStep(
        step=Step(index, player_id, "", choice, illegal=False),
        reward=reward,
        agent=AgentSpec(player_id, Role.ACTOR, ModelRef(f"policy@{version}", ModelKind.ENGINE, version)),
        env_id="env",
        game_id=game_id,
        group_id="",
        status=Status.COMPLETED,
    )


def sample(
    tokens: Sequence[int],
    spans: Sequence[tuple[int, int]],
    rewards: Sequence[float],
    *,
    logprob: float = -5.0,
    version: int = 0,
) -> LearnerSample:
    """A sequence whose trained tokens all have the same recorded log-probability."""
    trained = sum(stop - start for start, stop in spans)
    return LearnerSample(
        tuple(tokens), tuple(spans), (logprob,) * trained, tuple(rewards), "env", "actor", 0, "game", version
    )


def batch(*samples: LearnerSample, number: int = 0, version: int = 0) -> LearnerBatch:
    return LearnerBatch(number, version, samples)


def tiny_spec(model: Path, folder: Path, **changes: Any) -> LearnerSpec:
    """A learner of the tiny model, quick enough to see a step's effect."""
    settings: dict[str, Any] = {
        "lora_rank": 4,
        "lora_alpha": 8,
        "target_modules": TARGET_MODULES,
        "sampling": SamplingSpec(max_tokens=8),
        "learning_rate": 1e-2,
    }
    return LearnerSpec(str(model), str(folder), **(settings | changes))
