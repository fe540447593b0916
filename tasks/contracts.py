"""The values that cross the seams: frozen, picklable, standard library only.

A `GameSpec` says everything about one game before it is played; an `Episode` says everything about it afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tasks.token_ids import NO_IDS, TokenIds


class Mode(StrEnum):
    """Which lane a game belongs to."""

    TRAIN = "train"
    EVAL = "eval"


class Status(StrEnum):
    """How a submitted game ended; each has exactly one."""

    COMPLETED = "completed"
    ILLEGAL_MOVE = "illegal_move"
    TRUNCATED = "truncated"
    OVERFLOW = "overflow"
    TIMEOUT = "timeout"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ModelKind(StrEnum):
    """What answers for a player."""

    ENGINE = "engine"
    SCRIPTED = "scripted"
    API = "api"


class Role(StrEnum):
    """Whether a player's steps are learned from."""

    ACTOR = "actor"
    OPPONENT = "opponent"


class EngineState(StrEnum):
    """Where a worker's engine stands, as its worker events report it."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class AdapterRef:
    """A LoRA adapter by identity and place. `uid` names one immutable set of weights for ever.

    `digest` is that of its content (`tasks.adapter_files.content_digest`), which the files must have wherever they are
    loaded; empty where nothing is known of it. It is a check, and no part of what the adapter is.
    """

    uid: str
    path: str
    digest: str = field(default="", compare=False)


@dataclass(frozen=True)
class SamplingSpec:
    """How one completion is sampled; the fields are vLLM's of the same name."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApiRef:
    """A model behind an OpenAI-compatible endpoint, and how it is asked.

    `key_variable` names the environment variable that holds the key where the games are played, None where none is
    needed; the key itself is never part of a spec. `max_concurrency` bounds the decisions under way in one worker
    process. An attempt may take `timeout_s`; up to `retries` more follow, after pauses that double from `backoff_s`.
    """

    model: str
    base_url: str
    key_variable: str | None = None
    sampling: SamplingSpec = field(default_factory=lambda: SamplingSpec(max_tokens=1024))
    max_concurrency: int = 8
    timeout_s: float = 60.0
    retries: int = 5
    backoff_s: float = 1.0


@dataclass(frozen=True)
class ModelRef:
    """Who plays: the policy at one version, a fixed adapter, a scripted player, or a model behind an endpoint.

    `uid` is unique per set of weights (`policy@0`, `scripted:random`). `policy_version` is None for what is not a
    version of the policy in training; 0 is the base model. `api` belongs to the kind of that name.
    """

    uid: str
    kind: ModelKind
    policy_version: int | None = None
    adapter: AdapterRef | None = None
    api: ApiRef | None = None


@dataclass(frozen=True)
class AgentSpec:
    """One player of one game: who answers and how its text becomes an action."""

    player_id: int
    role: Role
    model: ModelRef
    prompt_template: str = "default"
    action_extraction: str = "boxed"
    action_sampler: str = "default"
    sampling: SamplingSpec | None = None


@dataclass(frozen=True)
class GameSpec:
    """One game to play. The same spec is the same game, alone or among a thousand.

    `agents[i]` plays `player_id == i`. `seed` is in [0, 2**63). Games of one group share environment and seed.
    """

    run_id: str
    game_id: str
    mode: Mode
    env_id: str
    num_players: int
    seed: int
    agents: tuple[AgentSpec, ...]
    group_id: str = ""
    group_index: int = 0
    attempt: int = 0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    error_allowance: int | None = None
    max_turns: int | None = None
    time_limit_s: float | None = None


@dataclass(frozen=True)
class Completion:
    """One sampled completion. `logprobs[i]` belongs to `token_ids[i]`, of the distribution sampled from.

    `text` is whole: a text of `SamplingSpec.stop` that ended it is its last part, as its token is the last of the ids.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    finish_reason: str


@dataclass(frozen=True)
class EngineReply:
    """What an engine gives back for one request of `n` completions.

    `token_limit` is the most tokens each of them could have: `max_tokens`, or what the context had left if less.
    """

    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    cached_tokens: int = 0
    token_limit: int | None = None


@dataclass(frozen=True)
class Choice:
    """What an agent answered for one decision, before the environment saw it.

    `completion` is None where an endpoint answered without a text. `feedback` says what was wrong with the form when
    `format_ok` is false. A log-probability that the engine did not give is NaN. `votes` counts parsed actions over all
    sampled completions (majority), None where one was sampled. `confidence` is the winner's share of the votes,
    `entropy` that of the votes in nats. `generated_tokens` counts all completions. Only engines give ids and
    log-probabilities.
    """

    action: str
    completion: str | None
    format_ok: bool
    feedback: str = ""
    prompt_ids: TokenIds = NO_IDS
    completion_ids: TokenIds = NO_IDS
    logprobs: tuple[float, ...] = ()
    finish_reason: str | None = None
    token_limit: int | None = None
    generated_tokens: int = 0
    cached_tokens: int = 0
    votes: Mapping[str, int] | None = None
    confidence: float | None = None
    entropy: float | None = None

    def __post_init__(self) -> None:
        """Ids may be given as any sequence of integers. `DatasetError` where they are none."""
        for name in ("prompt_ids", "completion_ids"):
            ids = getattr(self, name)
            if not isinstance(ids, TokenIds):
                object.__setattr__(self, name, TokenIds(ids))

    @property
    def logprobs_ok(self) -> bool:
        """Whether every completion token has a finite log-probability; a step without is never trained on."""
        return len(self.logprobs) == len(self.completion_ids) and all(map(math.isfinite, self.logprobs))


@dataclass(frozen=True)
class Step:
    """One decision of one player, as it was seen, said, parsed and taken.

    `index` counts decisions of the whole game from 0. `reward` is the environment's own step reward, None where it
    gives none. `info` is the environment's step info as JSON text. `latency_s` is the time to the answer, in seconds.
    """

    index: int
    player_id: int
    observation: str
    choice: Choice
    illegal: bool
    info: str = "{}"
    reward: float | None = None
    latency_s: float = 0.0


@dataclass(frozen=True)
class Trajectory:
    """One player's steps in one game, with what they earned.

    `final_reward` is the environment's raw value; None where it paid none, as in a truncated game. On its way to the
    buffer it learns of its group: `group_size` games were played, `group_delivered` of them gave this player something
    to learn from.
    """

    game_id: str
    group_id: str
    env_id: str
    agent: AgentSpec
    status: Status
    final_reward: float | None
    steps: tuple[Step, ...]
    group_size: int = 1
    group_delivered: int = 1


@dataclass(frozen=True)
class Episode:
    """One game after it was played, or after it could not be.

    `rewards[i]` is player i's raw reward; None where the environment gave that player none, and `rewards` itself is
    None when the game did not reach its end. `offender` is the player whose illegal move ended the game. `reason` is
    the environment's word for the end, or the error's type and message. `player_info[i]` is the environment's closing
    information on player i as JSON text. Times are Unix seconds.
    """

    spec: GameSpec
    status: Status
    steps: tuple[Step, ...] = ()
    rewards: tuple[float | None, ...] | None = None
    offender: int | None = None
    reason: str = ""
    player_info: tuple[str, ...] = ()
    started_at: float = 0.0
    finished_at: float = 0.0
    worker: str = ""

    def trajectory(self, player_id: int) -> Trajectory:
        """The steps of one player, and what they earned."""
        return Trajectory(
            game_id=self.spec.game_id,
            group_id=self.spec.group_id,
            env_id=self.spec.env_id,
            agent=self.spec.agents[player_id],
            status=self.status,
            final_reward=None if self.rewards is None else self.rewards[player_id],
            steps=tuple(step for step in self.steps if step.player_id == player_id),
        )


@dataclass(frozen=True)
class LoraSpec:
    """The adapter shape an engine serves. `max_rank` is the rank vLLM reserves, one of its allowed sizes."""

    max_rank: int
    max_adapters: int
    target_modules: tuple[str, ...]


@dataclass(frozen=True)
class EngineSpec:
    """What a worker needs to start its engine. `factory` is the import path of the class behind the interface.

    `factory` None means no engine: every player is scripted. `max_num_seqs` bounds what the engine batches.
    """

    model_name: str
    factory: str | None = "tasks.engine:VLLMEngine"
    max_model_len: int = 4096
    max_num_seqs: int = 64
    seed: int = 0
    dtype: str = "auto"
    lora: LoraSpec | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineFigures:
    """What an engine reports about itself, about once a second. Token counts are totals since the engine started.

    `kv_use` and `prefix_hit_rate` are shares in [0, 1], None before the first measurement.
    """

    worker: str
    state: EngineState
    reason: str = ""
    running_games: int = 0
    running_requests: int = 0
    waiting_requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    kv_use: float | None = None
    prefix_hit_rate: float | None = None
    restarts: int = 0
