"""Makes the next `GameSpec` of either lane: environment, seed, who sits where and how they answer.

The same configuration and seed give the same sequence of training specs and the same sequence of evaluation specs, each
whatever the other lane asked for in between, as long as the samplers do not look at results.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import ApiOpponent, EvalEnvSpec, TrainEnvSpec, VLLMConfig
from pipeline.env_samplers import BaseEnvSampler
from pipeline.model_samplers import BaseModelSampler, FixedSampler, opponent_ref
from tasks.action_samplers import action_sampler as check_action_sampler
from tasks.adapter_files import check_adapter
from tasks.contracts import AgentSpec, GameSpec, Mode, ModelKind, ModelRef, Role
from tasks.errors import ConfigError

SEED_BITS = 63
ID_GAP = 1000


class SpecBuilder:
    """Numbers the games of a run and fills in their specs.

    Args:
        run_id: goes into every spec.
        vllm: how the engine samples.
        env_sampler: which environment next.
        model_sampler: the current checkpoint and training opponents.
        action_sampler: how the policy chooses among completions in evaluation; in training it is always `default`.
        seed: of game seeds and of who sits where.
        group_size: how often each training game is played.

    Raises:
        ConfigError: an opponent does not exist, or needs an engine or LoRA that the run does not have; or there is no
            such action sampler, or it would count one completion several times.
        AdapterError: the folder of an evaluation opponent's adapter is incomplete.
    """

    def __init__(
        self,
        run_id: str,
        vllm: VLLMConfig,
        env_sampler: BaseEnvSampler,
        model_sampler: BaseModelSampler,
        action_sampler: str,
        seed: int,
        group_size: int = 1,
    ) -> None:
        self._run_id = run_id
        self._vllm = vllm
        self._env_sampler = env_sampler
        self._model_sampler = model_sampler
        self._eval_action_sampler = action_sampler
        self._group_size = group_size
        self._train_seeds = random.Random(f"training games {seed}")
        self._eval_seeds = random.Random(f"evaluation games {seed}")
        self._seats = random.Random(f"seats {seed}")
        self._numbers = dict.fromkeys(Mode, 0)
        self._fixed_opponents: dict[str | ApiOpponent, ModelRef] = {}
        self._eval_round: deque[tuple[EvalEnvSpec, int, frozenset[int]]] = deque()
        check_action_sampler(
            action_sampler, vllm.sampling() if env_sampler.evaluation and not vllm.is_scripted else None
        )
        fixed = model_sampler.opponents if isinstance(model_sampler, FixedSampler) else ()
        for opponent in (*fixed, *map(self._fixed_opponent, env_sampler.evaluation)):
            self._check_playable(opponent)
            if opponent.adapter is not None and (lora := vllm.engine_spec(seed).lora) is not None:
                # The base model may be out of reach of the driver; engines compare with that.
                check_adapter(Path(opponent.adapter.path), None, lora)

    def models(self) -> Iterable[ModelRef]:
        """The models that are known so far to play in this run."""
        return (*self._fixed_opponents.values(), *self._model_sampler.registry.models())

    def train(self) -> GameSpec:
        """The next training game: learning players at random seats, opponents at the rest.

        Raises:
            ConfigError: the model sampler chose a model that this run cannot play.
        """
        env = self._env_sampler.sample()
        seats = self._seats.sample(range(env.num_players), env.num_actors)
        policy = self._model_sampler.current()
        agents = [
            self._agent(env, seat, Role.ACTOR, policy)
            if seat in seats
            else self._agent(env, seat, Role.OPPONENT, self._model_sampler.sample_opponent(env))
            for seat in range(env.num_players)
        ]
        return self._spec(Mode.TRAIN, env, self._train_seeds.getrandbits(SEED_BITS), agents)

    def train_group(self) -> list[GameSpec]:
        """The next training game as often as a group has games: the same but for their ids and places in the group.

        Raises:
            ConfigError: the model sampler chose a model that this run cannot play.
        """
        first = self.train()
        copies = (
            replace(first, game_id=self._next_id(Mode.TRAIN), group_index=index) for index in range(1, self._group_size)
        )
        return [first, *copies]

    def evaluation(self) -> GameSpec:
        """The next evaluation game: the policy against the environment's fixed opponent.

        A seed is played once from each position of the policy before the next seed begins.

        Raises:
            ConfigError: there is no evaluation environment.
        """
        if not self._eval_round:
            self._eval_round.extend(self._new_round())
        env, seed, seats = self._eval_round.popleft()
        policy, opponent = self._model_sampler.current(), self._fixed_opponent(env)
        agents = [
            self._agent(env, seat, Role.ACTOR, policy, self._eval_action_sampler)
            if seat in seats
            else self._agent(env, seat, Role.OPPONENT, opponent)
            for seat in range(env.num_players)
        ]
        return self._spec(Mode.EVAL, env, seed, agents)

    def state(self) -> dict[str, Any]:
        """Where the sequences stand, for a checkpoint; values that pickle."""
        return {
            "generators": [rng.getstate() for rng in (self._train_seeds, self._eval_seeds, self._seats)],
            "numbers": dict(self._numbers),
            "eval_round": list(self._eval_round),
        }

    def restore(self, state: Mapping[str, Any], known: Iterable[str]) -> None:
        """Go on from what `state` returned.

        Games were begun after that, of which not all left a trace: numbers go on from the next round thousand.

        Args:
            state: of an earlier builder with the same configuration.
            known: the ids of all games that left a trace.
        """
        for rng, saved in zip((self._train_seeds, self._eval_seeds, self._seats), state["generators"], strict=True):
            rng.setstate(saved)
        self._numbers = dict(state["numbers"])
        self._eval_round = deque(state["eval_round"])
        for game_id in known:
            mode, _, number = game_id.partition("-")
            self._numbers[Mode(mode)] = max(self._numbers[Mode(mode)], int(number) + 1)
        self._numbers = {mode: -(-number // ID_GAP) * ID_GAP for mode, number in self._numbers.items()}

    def _new_round(self) -> Iterator[tuple[EvalEnvSpec, int, frozenset[int]]]:
        """The next environment and seed, with the seats of the policy in each of its games."""
        env = self._env_sampler.sample_eval()
        seed = self._eval_seeds.getrandbits(SEED_BITS)
        players, actors = env.num_players, env.num_actors
        # A policy that holds every seat would play the same game from each of them.
        for first in range(players if actors < players else 1):
            yield env, seed, frozenset((first + step) % players for step in range(actors))

    def _spec(self, mode: Mode, env: TrainEnvSpec | EvalEnvSpec, seed: int, agents: list[AgentSpec]) -> GameSpec:
        game_id = self._next_id(mode)
        return GameSpec(
            run_id=self._run_id,
            game_id=game_id,
            mode=mode,
            env_id=env.env_id,
            num_players=env.num_players,
            seed=seed,
            agents=tuple(agents),
            group_id=game_id,
            env_kwargs=dict(env.env_kwargs),
            error_allowance=env.error_allowance,
            max_turns=env.max_turns,
            time_limit_s=env.time_limit_s,
        )

    def _next_id(self, mode: Mode) -> str:
        self._numbers[mode] += 1
        return f"{mode}-{self._numbers[mode] - 1:06d}"

    def _agent(
        self, env: TrainEnvSpec | EvalEnvSpec, seat: int, role: Role, model: ModelRef, action_sampler: str = "default"
    ) -> AgentSpec:
        self._check_playable(model)
        is_engine = model.kind is ModelKind.ENGINE
        return AgentSpec(
            player_id=seat,
            role=role,
            model=model,
            prompt_template=env.prompt_template,
            action_extraction=env.action_extraction,
            # Others have no completions to choose among.
            action_sampler=action_sampler if is_engine else "default",
            sampling=self._vllm.sampling() if is_engine else model.api.sampling if model.api else None,
        )

    def _fixed_opponent(self, env: EvalEnvSpec) -> ModelRef:
        """Looked up once per name, because an adapter's uid costs reading its weights."""
        name = env.fixed_opponent
        if name not in self._fixed_opponents:
            self._fixed_opponents[name] = opponent_ref(name)
        return self._fixed_opponents[name]

    def _check_playable(self, model: ModelRef) -> None:
        if model.kind is ModelKind.ENGINE and self._vllm.is_scripted:
            raise ConfigError(
                f"the model {model.uid!r} needs an engine, but vllm.model_name {self._vllm.model_name!r} has none: "
                "name a language model there, or scripted opponents only"
            )
        if model.adapter is not None and self._vllm.lora_config is None:
            raise ConfigError(
                f"the model {model.uid!r} is a LoRA adapter, but vllm.lora_config is not set: "
                "set it to at least the adapter's rank, or name another opponent"
            )
