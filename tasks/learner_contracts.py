"""The values that cross the seam to the learner: frozen, picklable, standard library only.

A `LearnerBatch` is what one learning step takes, a `TrainReport` what it came to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.contracts import SamplingSpec


@dataclass(frozen=True)
class LearnerSample:
    """One sequence to learn from: a player's consecutive steps where each prompt extends the tokens before it exactly,
    else a single step.

    `token_ids` are prompts and completions as the engine had them. `spans[i]`, [start, end) in `token_ids`, is the
    completion of step i: what is trained. `logprobs` are the recorded ones of the trained tokens, in order.
    `rewards[i]` is step i's transformed reward. `policy_version` generated all of it; `role` is the player's `Role`.
    """

    token_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    logprobs: tuple[float, ...]
    rewards: tuple[float, ...]
    env_id: str
    role: str
    player_id: int
    game_id: str
    policy_version: int


@dataclass(frozen=True)
class LearnerBatch:
    """What one `train_step` takes.

    `number` counts learning steps from 0; `policy_version` is the one the learner must be at. `dropped` steps were
    left out on the way because they were too old, for the report.
    """

    number: int
    policy_version: int
    samples: tuple[LearnerSample, ...]
    dropped: int = 0


@dataclass(frozen=True)
class TrainReport:
    """What one `train_step` came to. `policy_version` is the learner's after it.

    A step that is `skipped`, for its `reason`, left weights and version as they were and has no `adapter`. Otherwise
    `adapter` holds the files of the new version by name, as PEFT saves them. `metrics` are finite numbers; one without
    data is left out.
    """

    number: int
    policy_version: int
    metrics: Mapping[str, float]
    skipped: bool = False
    reason: str = ""
    adapter: Mapping[str, bytes] | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class LearnerSpec:
    """What a worker needs to learn: base model, shape of the adapter, algorithm, optimiser, and where state is saved.

    `sampling` is how the engines sample: its temperature scales the learner's logits too, and its `max_tokens` is what
    an algorithm may divide a step's sum of tokens by. The learning rate rises over `warmup_steps` and then follows
    `schedule` ("constant", "cosine" or "linear") down to 0 at `total_steps`. `max_grad_norm` None clips nothing. A
    batch is one step of the optimiser; its gradient is accumulated over micro-batches of `micro_batch_tokens` tokens,
    padding included. `dtype` "auto" is float32 on a CPU and bfloat16 on a GPU. `checkpoint_dir` is storage that all
    learner workers see; the newest `keep_checkpoints` versions stay there. `max_skipped` steps in a row without a
    finite loss and gradient are an error.
    """

    model_name: str
    checkpoint_dir: str
    lora_rank: int
    lora_alpha: float
    target_modules: tuple[str, ...]
    lora_dropout: float = 0.0
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    algorithm: str = "reinforce"
    algorithm_args: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    max_grad_norm: float | None = 0.2
    micro_batch_tokens: int = 4096
    dtype: str = "auto"
    gradient_checkpointing: bool = True
    keep_checkpoints: int = 3
    max_skipped: int = 3
    seed: int = 0
