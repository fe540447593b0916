"""Every error of the project: one base, a standard-library second parent, picklable, with a message that advises."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SelfplayError(Exception):
    """Base of all errors raised on purpose. The message says what, what was got, what was expected, how to mend it."""


class ConfigError(SelfplayError, ValueError):
    """A setting is wrong. Names the field, the value and the range or the nearest valid name."""


class ClusterError(SelfplayError, RuntimeError):
    """The Dask cluster cannot be reached or cannot carry the run. Says what is there, what is needed, which command."""


class EnvironmentFault(SelfplayError, RuntimeError):
    """An environment could not be made, reset or stepped; or has no such setting."""


class EnvironmentHungError(EnvironmentFault):
    """A call of an environment did not come back in time; the game ends as `timeout`."""


class MustWaitError(SelfplayError, RuntimeError):
    """Something would have to wait for a lock where it must not; try again where it may."""


class PromptTooLongError(SelfplayError, ValueError):
    """A prompt does not leave room for one token in the model's context; the game ends as `overflow`."""


class EngineDiedError(SelfplayError, RuntimeError):
    """The engine's core died under a running game; the driver plays the game again as its next attempt."""


class EngineStartError(SelfplayError, RuntimeError):
    """An engine could not start, or died for the second time; its worker is of no use to the run."""


class OpponentError(SelfplayError, RuntimeError):
    """An opponent behind an endpoint gave no usable answer; the game fails, and no player is to blame."""


class GameCancelledError(SelfplayError, RuntimeError):
    """A game was cancelled before it had anything to hand back, usually while it waited for its turn."""


class AdapterError(SelfplayError, ValueError):
    """A LoRA adapter is incomplete or does not fit the base model; refused before the engine sees it."""


class LearnerError(SelfplayError, RuntimeError):
    """The learner cannot load its model or a checkpoint, or what it learns from is broken; says what to look at."""


class LearnerVersionError(LearnerError):
    """A learning step names another policy version than the learner is at; restore the one it names and ask again."""


class TooManyFailuresError(SelfplayError, RuntimeError):
    """The budget of consecutive failed games is spent; says what to look at."""


class DatasetError(SelfplayError, ValueError):
    """A run folder or a shard cannot be read or written as asked."""


class Caught:
    """What `boundary` caught: `.error` is None until something was raised."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    @property
    def summary(self) -> str:
        """Type and message on one line, e.g. `KeyError: 'player_cards'`; empty when nothing was raised."""
        return "" if self.error is None else f"{type(self.error).__name__}: {self.error}"

    @property
    def trace(self) -> str:
        """The formatted traceback; empty when nothing was raised."""
        return "" if self.error is None else "".join(traceback.format_exception(self.error))


@contextmanager
def boundary(on_error: Callable[[Exception], None] | None = None) -> Iterator[Caught]:
    """Turn whatever foreign code raises into data: the one broad `except` of the project.

    For calls into code that is not ours (environments, user hooks, tracking servers), where the caller records the
    error on the episode or in a log. `SelfplayError` passes through: our own errors are handled by name.

    Args:
        on_error: called with the error that was caught.

    Yields:
        A `Caught`, to look at after the block.
    """
    caught = Caught()
    try:
        yield caught
    except SelfplayError:
        raise
    except Exception as error:
        caught.error = error
        if on_error is not None:
            on_error(error)
