"""Who answers for a player: a model behind the worker's engine or behind an endpoint, or a scripted player.

Every agent draws from its own generator, derived from the game's seed, its index in its group and the player, so the
games of one group differ in what is sampled and in nothing else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tasks.action_samplers import action_sampler
from tasks.api_agent import ApiAgent
from tasks.contracts import AgentSpec, Choice, GameSpec, ModelKind, SamplingSpec
from tasks.errors import ConfigError
from tasks.names import look_up
from tasks.prompts import action_extraction, prompt_template
from tasks.randomness import derive_seed

if TYPE_CHECKING:
    from tasks.host import Engine

SCRIPTED_PREFIX = "scripted:"
FALLBACK_MOVE = "[0]"

_BRACKETED = re.compile(r"\[[^\[\]\n]+\]")
# Bounded, or a line of labels alone, as a model may write it, would take time with the square of its length.
_MOVES_LABEL = re.compile(
    r"\b(?:available|valid|legal|possible|your)\s+(?:actions|moves|options)\b[^\[\n]{0,200}(\[.*)", re.I
)
_SPEAKER = re.compile(r"\[(?:GAME|Player \d+)\]")

Pick = Callable[[Sequence[str], random.Random], str]


class Agent(Protocol):
    """Answers for one player of one game."""

    async def act(self, observation: str, step_index: int) -> Choice:
        """The answer to one observation; `step_index` counts decisions of the whole game from 0."""
        ...


def make_agent(spec: GameSpec, agent: AgentSpec, engine: Engine | None) -> Agent:
    """The agent for one player of the game `spec`.

    Raises:
        ConfigError: unknown scripted player, prompt template, action extraction or action sampler; no engine or no
            sampling parameters for a model that needs them.
    """
    if agent.model.kind is ModelKind.SCRIPTED:
        return ScriptedAgent(spec, agent)
    if agent.sampling is None:
        raise ConfigError(
            f"player {agent.player_id} is model {agent.model.uid!r} without sampling parameters; set them."
        )
    if agent.model.api is not None:
        return ApiAgent(agent, agent.model.api, agent.sampling)
    if engine is None:
        raise ConfigError(
            f"player {agent.player_id} is model {agent.model.uid!r}, but this worker has no engine; start the workers "
            "with an engine, or use scripted players."
        )
    return EngineAgent(spec, agent, engine, agent.sampling)


class ScriptedAgent:
    """Plays without a model: `scripted:random` any of the moves it reads, `scripted:first` the first of them."""

    def __init__(self, spec: GameSpec, agent: AgentSpec) -> None:
        self._pick = look_up("scripted player", agent.model.uid.removeprefix(SCRIPTED_PREFIX), _PICKS)
        self._rng = random.Random(_agent_seed(spec, agent))

    async def act(self, observation: str, step_index: int) -> Choice:
        """One move, which is its own completion; no tokens."""
        move = self._pick(readable_moves(observation), self._rng)
        return Choice(action=move, completion=move, format_ok=True)


class EngineAgent:
    """Plays with the model behind an engine, at the adapter its spec names."""

    def __init__(self, spec: GameSpec, agent: AgentSpec, engine: Engine, sampling: SamplingSpec) -> None:
        self._engine = engine
        self._sampling = sampling
        self._adapter = agent.model.adapter
        self._prompt = prompt_template(agent.prompt_template)
        self._extract = action_extraction(agent.action_extraction)
        self._sampler = action_sampler(agent.action_sampler, sampling)
        self._seed = _agent_seed(spec, agent)
        self._rng = random.Random(self._seed)

    async def act(self, observation: str, step_index: int) -> Choice:
        """One request for as many completions as the action sampler wants, and its choice among them.

        Raises:
            PromptTooLongError, EngineDiedError, AdapterError: from the engine.
        """
        reply = await self._engine.generate(
            self._prompt(observation),
            self._sampling,
            n=self._sampler.completions,
            seed=derive_seed(self._seed, step_index),
            adapter=self._adapter,
        )
        return self._sampler.choose(reply, self._extract, self._rng)


def scripted_players() -> tuple[str, ...]:
    """The uids of all scripted players."""
    return tuple(f"{SCRIPTED_PREFIX}{name}" for name in _PICKS)


def readable_moves(observation: str) -> list[str]:
    """The moves an observation offers, best guess first come; never empty.

    TextArena has no list of legal moves, its games write one into the text: the last line that announces moves
    (`Available Moves: '[0]', '[1]'`) counts, since an observation may carry the game so far. Without one, everything in
    square brackets is taken for a move, except who speaks; without that, `[0]`.
    """
    announced = _MOVES_LABEL.findall(observation)
    text = announced[-1] if announced else _SPEAKER.sub("", observation)
    return list(dict.fromkeys(_BRACKETED.findall(text))) or [FALLBACK_MOVE]


def _agent_seed(spec: GameSpec, agent: AgentSpec) -> int:
    return derive_seed("agent", spec.seed, spec.group_index, agent.player_id)


_PICKS: dict[str, Pick] = {
    "random": lambda moves, rng: rng.choice(moves),
    "first": lambda moves, rng: moves[0],
}
