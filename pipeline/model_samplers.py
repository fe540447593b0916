"""Who plays the next game: the checkpoint in training, and opponents for the players that do not learn."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import SCRIPTED_MODELS, ApiOpponent, TrainEnvSpec
from pipeline.config_opponents import openrouter_opponent
from pipeline.model_registry import ModelRegistry
from pipeline.named_classes import find_class
from tasks.adapter_files import content_digest
from tasks.contracts import AdapterRef, Episode, ModelKind, ModelRef
from tasks.errors import ConfigError
from tasks.names import nearest


class BaseModelSampler(ABC):
    """Chooses the models of training games. Subclass it with `sample_opponent`, and with `update` to look at results.

    Args:
        registry: the models there are; `registry.current()` is the checkpoint in training.
        seed: the same seed gives the same sequence of opponents.
    """

    def __init__(self, registry: ModelRegistry, seed: int = 0) -> None:
        self.registry = registry
        self.rng = random.Random(f"opponents {seed}")

    def current(self) -> ModelRef:
        """The checkpoint that the learning players use, at the version a game submitted now is bound to."""
        return self.registry.current()

    @abstractmethod
    def sample_opponent(self, env: TrainEnvSpec) -> ModelRef:
        """The model for one player that does not learn, in a game of `env`; asked once for each such player."""

    def update(self, episode: Episode) -> None:  # noqa: B027 - may be left out
        """Hear of one ended game of either lane, whatever its status. Does nothing unless overridden."""

    def state(self) -> dict[str, Any]:
        """Where its sequence stands, for a checkpoint; a subclass that knows more adds it. Values that pickle."""
        return {"rng": self.rng.getstate()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.rng.setstate(state["rng"])


class MirrorSampler(BaseModelSampler):
    """Self-play: every opponent is the checkpoint in training."""

    def sample_opponent(self, env: TrainEnvSpec) -> ModelRef:
        """The checkpoint in training."""
        return self.current()


class FixedSampler(BaseModelSampler):
    """Opponents from a list that does not change, each entry equally likely.

    Args:
        opponents: as `opponent_ref` reads them; one named twice is twice as likely.

    Raises:
        ConfigError: the list is empty or an entry is no opponent.
        AdapterError: an adapter's folder is incomplete.
    """

    def __init__(self, registry: ModelRegistry, opponents: Sequence[str | ApiOpponent], seed: int = 0) -> None:
        super().__init__(registry, seed)
        if not opponents:
            raise ConfigError("models.opponents is empty: the fixed sampler needs at least one, e.g. scripted:random")
        self.opponents = tuple(opponent_ref(name) for name in opponents)
        for opponent in self.opponents:
            registry.add(opponent)

    def sample_opponent(self, env: TrainEnvSpec) -> ModelRef:
        """One of the list, independent of the draws before."""
        return self.rng.choice(self.opponents)


class LastKSampler(BaseModelSampler):
    """Opponents from the newest versions of the policy, the current one among them, each equally likely.

    While there is one version only, and where what trains has no versions (a scripted player), this is self-play.

    Args:
        k: how many versions.

    Raises:
        ConfigError: `k` is below 1.
    """

    def __init__(self, registry: ModelRegistry, k: int = 5, seed: int = 0) -> None:
        super().__init__(registry, seed)
        if k < 1:
            raise ConfigError(f"models.k is {k}: the last_k sampler needs at least 1 version")
        self.k = k

    def sample_opponent(self, env: TrainEnvSpec) -> ModelRef:
        """One of the versions there are now, independent of the draws before."""
        return self.rng.choice(self.registry.policy_versions()[-self.k :] or (self.current(),))


def opponent_ref(opponent: str | ApiOpponent) -> ModelRef:
    """The fixed opponent that a config names.

    That is `scripted:random`, `scripted:first`, `adapter:/path/to/folder`, `vendor/model` as OpenRouter has it, or the
    settings of an endpoint.

    An adapter's uid is made of its folder's name and a digest of its content: the same weights under the same name are
    the same model in every run.

    Raises:
        ConfigError: no such opponent, or no such folder.
        AdapterError: the folder lacks an adapter's files.
    """
    if isinstance(opponent, ApiOpponent):
        return opponent.model_ref()
    if (known_there := openrouter_opponent(opponent)) is not None:
        return known_there.model_ref()
    if opponent in SCRIPTED_MODELS:
        return ModelRef(uid=opponent, kind=ModelKind.SCRIPTED)
    kind, _, place = opponent.partition(":")
    if kind != "adapter" or not place:
        raise ConfigError(
            f"there is no opponent {opponent!r}: expected {', '.join(SCRIPTED_MODELS)}, adapter:/path/to/folder or "
            f"vendor/model.{nearest(opponent, SCRIPTED_MODELS)}"
        )
    folder = Path(place).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(
            f"opponent {opponent!r}: there is no folder {folder}; expected one that PEFT's save_pretrained wrote"
        )
    digest = content_digest(folder)
    uid = f"adapter:{folder.name}@{digest[:12]}"
    return ModelRef(uid=uid, kind=ModelKind.ENGINE, adapter=AdapterRef(uid=uid, path=str(folder), digest=digest))


_BY_NAME: dict[str, type[BaseModelSampler]] = {"mirror": MirrorSampler, "fixed": FixedSampler, "last_k": LastKSampler}
_PLAYS = {"mirror": "which plays against itself", "last_k": "which plays against its own versions"}


def make_model_sampler(
    name: str, registry: ModelRegistry, opponents: Sequence[str | ApiOpponent], seed: int, k: int = 5
) -> BaseModelSampler:
    """The sampler that a config names: `mirror`, `fixed`, `last_k` or a user's `package.module:Name`.

    A user's class is called as `Name(registry, seed=seed)`, with `opponents=...` added where the config has opponents.
    `k` is for `last_k` only.

    Raises:
        ConfigError: the name is unknown, the class is no `BaseModelSampler`, or opponents are given to one of ours that
            has none.
        AdapterError: an adapter's folder is incomplete.
    """
    kind = find_class("models.sampler", name, _BY_NAME, BaseModelSampler)
    if name == "fixed":
        return FixedSampler(registry, opponents, seed)
    if opponents and name in _PLAYS:
        raise ConfigError(
            f"models.opponents is {list(opponents)} but models.sampler is {name!r}, {_PLAYS[name]}: "
            "set the sampler to 'fixed', or remove the opponents"
        )
    if name == "last_k":
        return LastKSampler(registry, k, seed)
    if not opponents:
        return kind(registry, seed=seed)
    return kind(registry, opponents=opponents, seed=seed)  # type: ignore[call-arg]  # the user's own signature
