"""Which models there are, how they fared in each lane, alone and against each other, and how strong they are.

Only games with a trainable end (`completed`, `illegal_move`) count. A game whose players are all the same model is a
mirror game: it is counted, and says nothing about strength.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from pipeline.adapter_versions import write_version
from pipeline.model_results import ModelResults, PairResults, Tally
from pipeline.ratings import RATED, ModelRating, Ratings
from tasks.adapter_files import check_adapter
from tasks.adapter_manifest import Manifest, file_digests
from tasks.base_model import BaseModel
from tasks.contracts import Episode, LoraSpec, Mode, ModelKind, ModelRef
from tasks.errors import ConfigError, DatasetError
from tasks.names import nearest
from tasks.outcomes import forfeits, outcomes


@dataclass
class _File:
    """The content of `registry.json`. A change that readers would notice makes a new `version`.

    1 had no ratings, 2 no parents: `parents` has the model that each published version was trained from, by uid.
    """

    version: Literal[1, 2, 3]
    current: str
    models: list[ModelRef]
    results: list[ModelResults]
    pairs: list[PairResults]
    ratings: list[ModelRating] = field(default_factory=list)
    parents: dict[str, str] = field(default_factory=dict)


_FILE = TypeAdapter(_File)
ADAPTERS = "adapters"


class ModelRegistry:
    """The models of a run, the current checkpoint among them, and their results.

    Games may be recorded in one thread while another publishes.

    Args:
        policy: the checkpoint in training.
        path: where `save` writes; `publish` writes to `adapters/` beside it.
    """

    def __init__(self, policy: ModelRef, path: Path | None = None) -> None:
        self.path = path
        self._policy = policy
        self._models = {policy.uid: policy}
        self._results: dict[tuple[str, Mode], ModelResults] = {}
        self._pairs: dict[tuple[str, str, Mode], PairResults] = {}
        self._parents: dict[str, str] = {}
        self._ratings = Ratings()
        self._lock = threading.RLock()

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same models and results, wherever they are saved."""
        return isinstance(other, ModelRegistry) and self._content() == other._content()

    def current(self) -> ModelRef:
        """The checkpoint in training."""
        return self._policy

    def models(self) -> tuple[ModelRef, ...]:
        """All models there are, in the order they became known."""
        return tuple(self._models.values())

    def policy_versions(self) -> tuple[ModelRef, ...]:
        """The versions of the policy in training that are known, oldest first."""
        versions = [
            (model.policy_version, model) for model in self._models.values() if model.policy_version is not None
        ]
        return tuple(model for _, model in sorted(versions, key=lambda pair: pair[0]))

    def add(self, model: ModelRef) -> None:
        """Make a model known; adding the same one again does nothing.

        Raises:
            ConfigError: a different model has the same uid.
        """
        known = self._models.setdefault(model.uid, model)
        if known != model:
            raise ConfigError(f"two models share the uid {model.uid!r}: {known} and now {model}; give one a new uid")

    def publish(
        self, files: Mapping[str, bytes], *, base: BaseModel, lora: LoraSpec, step: int, algorithm: str
    ) -> ModelRef:
        """Make these weights the policy's next version: games submitted from now on play with it.

        A new folder `adapters/UID/` beside the registry's file holds it; the registry itself is not saved. The new
        version begins with its parent's rating, a little less certain. Whatever is raised, the policy stays as it was.

        Args:
            files: `adapter_config.json` and `adapter_model.safetensors`, as PEFT saves them.
            base: the model it was trained on.
            lora: what the engines were started for.
            step: the learning step it comes from.
            algorithm: the algorithm that step was taken with.

        Raises:
            AdapterError: engines could not serve it; as `tasks.adapter_files.check_adapter` says.
            ConfigError: the registry was made without a path, or what trains has no versions.
            OSError: the folder cannot be written.
        """
        parent = self.current()
        if self.path is None or parent.policy_version is None:
            raise ConfigError(
                f"{parent.uid!r} cannot have a next version: the registry's path is {self.path}, the policy's version "
                f"{parent.policy_version}; expected ModelRegistry(policy, path) with a policy that has versions"
            )
        version = parent.policy_version + 1
        manifest = Manifest(
            uid=f"{parent.uid.partition('@')[0]}@{version}",
            policy_version=version,
            parent=parent.uid,
            step=step,
            algorithm=algorithm,
            base_model=base.name,
            base_fingerprint=base.fingerprint,
            files=file_digests(files),
        )
        adapter = write_version(
            self.path.parent.absolute() / ADAPTERS,
            manifest,
            files,
            lambda folder: check_adapter(folder, base.shapes, lora),
        )
        model = ModelRef(adapter.uid, ModelKind.ENGINE, version, adapter)
        with self._lock:
            self.add(model)
            self._parents[model.uid] = parent.uid
            self._ratings.inherit(model.uid, parent.uid)
            self._policy = model
        return model

    def lineage(self, uid: str) -> tuple[str, ...]:
        """The uids of a model and of those it was trained from, newest first.

        Raises:
            ConfigError: there is no such model.
        """
        line = [self.get(uid).uid]
        while line[-1] in self._parents:
            line.append(self._parents[line[-1]])
        return tuple(line)

    def get(self, uid: str) -> ModelRef:
        """The model with this uid.

        Raises:
            ConfigError: there is none.
        """
        if uid not in self._models:
            raise ConfigError(
                f"there is no model {uid!r} in the registry; it knows {', '.join(self._models)}."
                f"{nearest(uid, self._models)}"
            )
        return self._models[uid]

    def results(self, uid: str, mode: Mode) -> ModelResults:
        """How a model fared in one lane; zeros where it has not played.

        Raises:
            ConfigError: there is no such model.
        """
        return self._results.get((uid, mode)) or ModelResults(self.get(uid).uid, mode)

    def pair(self, uid: str, against: str, mode: Mode) -> Tally:
        """How `uid` fared against `against` in one lane, from its own side; zeros where they have not met.

        Raises:
            ConfigError: there is no such model.
        """
        found = self._pairs.get((uid, against, mode))
        return found.results if found else PairResults(self.get(uid).uid, self.get(against).uid, mode).results

    def rating(self, uid: str) -> ModelRating:
        """The TrueSkill rating of a model, over the games of both lanes; the starting one where it has not been rated.

        Raises:
            ConfigError: there is no such model.
        """
        return self._ratings.of(self.get(uid).uid)

    def ratings(self) -> list[ModelRating]:
        """The ratings of all that have been rated, environments of single players among them, by uid."""
        return self._ratings.all()

    def record(self, episode: Episode) -> None:
        """Count one ended game and rate it; its models become known.

        Games without a trainable end leave no result. Ratings depend on the order in which games are recorded.
        """
        with self._lock:
            self._record(episode)

    def _record(self, episode: Episode) -> None:
        for agent in episode.spec.agents:
            self.add(agent.model)
        if episode.status not in RATED or episode.rewards is None:
            return
        self._ratings.rate(episode)
        mode = episode.spec.mode
        players = [self._results_of(agent.model.uid, mode) for agent in episode.spec.agents]
        if len(players) == 1:
            players[0].single_player.add(episode.rewards[0])
        elif all(player is players[0] for player in players):
            players[0].mirror_games += 1
        else:
            self._record_versus(episode, players)

    def _record_versus(self, episode: Episode, players: list[ModelResults]) -> None:
        rewards, offender = episode.rewards or (), episode.offender
        ends = zip(players, outcomes(rewards, offender), forfeits(rewards, offender), strict=True)
        for player, outcome, forfeit in ends:
            player.versus.add(outcome, forfeit)
        for one, other in itertools.permutations(range(len(players)), 2):
            # An illegal move ends the game before the players who did not make it have a result between them.
            if players[one] is players[other] or offender not in (None, one, other):
                continue
            both = (rewards[one], rewards[other])
            by = None if offender is None else (one, other).index(offender)
            tally = self._pair_of(players[one].uid, players[other].uid, episode.spec.mode)
            tally.add(outcomes(both, by)[0], forfeits(both, by)[0])

    def _results_of(self, uid: str, mode: Mode) -> ModelResults:
        return self._results.setdefault((uid, mode), ModelResults(uid, mode))

    def _pair_of(self, uid: str, against: str, mode: Mode) -> Tally:
        return self._pairs.setdefault((uid, against, mode), PairResults(uid, against, mode)).results

    def _content(self) -> _File:
        with self._lock:
            return _File(
                version=3,
                current=self._policy.uid,
                models=[model for _, model in sorted(self._models.items())],
                results=[results for _, results in sorted(self._results.items())],
                pairs=[pair for _, pair in sorted(self._pairs.items())],
                ratings=self._ratings.all(),
                parents=dict(self._parents),
            )

    def save(self) -> None:
        """Write everything to `path` as JSON, atomically: a reader finds the old state or the new one.

        Raises:
            ConfigError: the registry was made without a path.
            OSError: the folder cannot be written.
        """
        if self.path is None:
            raise ConfigError("the model registry has no path to save to: make it as ModelRegistry(policy, path)")
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("wb") as file:
            file.write(_FILE.dump_json(self._content(), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)

    @classmethod
    def load(cls, path: Path) -> ModelRegistry:
        """Read what `save` wrote. A file of version 1 has no ratings: they begin anew.

        Published versions are looked for beside the file, wherever it was when they were published.

        Raises:
            DatasetError: the file is missing, garbled or of another version.
        """
        try:
            content = _FILE.validate_json(path.read_bytes())
            models = {model.uid: _beside(path, model) for model in content.models}
            registry = cls(models[content.current], path)
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise _unreadable(path, f"{place}: {first['msg']}") from error
        except KeyError as error:
            raise _unreadable(path, f"current: {error} is none of its models") from error
        registry._models = models
        registry._results = {(found.uid, found.mode): found for found in content.results}
        registry._pairs = {(found.uid, found.against, found.mode): found for found in content.pairs}
        registry._ratings = Ratings(content.ratings)
        registry._parents = content.parents
        return registry


def _beside(path: Path, model: ModelRef) -> ModelRef:
    """The same model, with the folder of a published version where it is now."""
    if model.policy_version is None or model.adapter is None:
        return model
    folder = path.parent.absolute() / ADAPTERS / model.adapter.uid
    return replace(model, adapter=replace(model.adapter, path=str(folder)))


def _unreadable(path: Path, reason: str) -> DatasetError:
    return DatasetError(
        f"{path} cannot be read as a model registry ({reason}); expected the registry.json of a run, version 1 to 3. "
        "Take it from a run folder written by this version, or start a new registry: counts can be made again from the "
        "run's episodes"
    )
