"""Which engine plays the next game: policy only, nothing here talks to Dask.

Each lane's quota is split over the engines that are ready, the evaluation lane first. An engine runs at most its share
of a lane at once and holds a little more in its queue (`prefetch`), so that a slot never waits for the driver.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tasks.contracts import Mode

LANES_BY_PRIORITY = (Mode.EVAL, Mode.TRAIN)


@dataclass
class EngineSlots:
    """What one engine can run and what it was given: `capacity` games at once, `share` and `outstanding` by lane."""

    capacity: int
    ready: bool = True
    share: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    outstanding: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))

    def in_flight(self, lane: Mode) -> int:
        """Games of the lane executing here."""
        return min(self.outstanding[lane], self.share[lane])


def split_quotas(
    quotas: Mapping[Mode, int], capacities: Mapping[str, int], holding: Mapping[str, Collection[Mode]] | None = None
) -> dict[str, dict[Mode, int]]:
    """Shares by engine and lane: even, within each engine's capacity, the evaluation lane served first.

    Evaluation leaves training at least one place: where workers were lost, the run would otherwise never end.

    Args:
        quotas: most games in flight by lane.
        capacities: most games at once by engine.
        holding: the lanes that an engine has games of, which come before other engines in those lanes.

    Returns:
        For every engine a share per lane. The shares of a lane add up to its quota, or to all the capacity there is.
    """
    held = holding or {}
    shares = {engine: dict.fromkeys(Mode, 0) for engine in capacities}

    def order(lane: Mode, engine: str) -> tuple[int, bool, int, int]:
        """What an engine is chosen by for one more of the lane: the least comes first."""
        here = held.get(engine, ())
        return shares[engine][lane], lane not in here, len(here), sum(shares[engine].values())

    for lane in LANES_BY_PRIORITY:
        kept = 1 if lane is Mode.EVAL and quotas.get(Mode.TRAIN) else 0
        for _ in range(min(quotas.get(lane, 0), sum(capacities.values()) - kept)):
            free = [engine for engine, share in shares.items() if sum(share.values()) < capacities[engine]]
            if not free:
                break
            shares[min(free, key=partial(order, lane))][lane] += 1
    return shares


class Balancer:
    """Keeps count of the games on each engine and names the engine for the next one.

    Args:
        quotas: most games in flight by lane.
        prefetch: games that may be queued beyond the quota, as a share of it.
        rng: settles ties.
    """

    def __init__(self, quotas: Mapping[Mode, int], prefetch: float, rng: random.Random) -> None:
        self._quotas = dict(quotas)
        self._most = {lane: quota + math.ceil(quota * prefetch) for lane, quota in self._quotas.items()}
        self._rng = rng
        self.engines: dict[str, EngineSlots] = {}

    def add_engine(self, engine: str, capacity: int) -> None:
        """An engine is ready for games, for the first time or again; shares are split anew."""
        self.engines.setdefault(engine, EngineSlots(capacity)).ready = True
        self._split()

    def pause_engine(self, engine: str) -> bool:
        """An engine takes no games for now, though some are still out there; True if it took any before."""
        slots = self.engines.get(engine)
        if slots is None or not slots.ready:
            return False
        slots.ready = False
        self._split()
        return True

    def remove_engine(self, engine: str) -> bool:
        """An engine is gone, and its games with it; True if it took any."""
        slots = self.engines.pop(engine, None)
        if slots is None:
            return False
        self._split()
        return slots.ready

    def _split(self) -> None:
        capacities = {engine: slots.capacity for engine, slots in self.engines.items() if slots.ready}
        holding = {engine: [lane for lane in Mode if slots.outstanding[lane]] for engine, slots in self.engines.items()}
        shares = split_quotas(self._quotas, capacities, holding)
        for engine, slots in self.engines.items():
            slots.share = shares.get(engine, dict.fromkeys(Mode, 0))

    def room(self, lane: Mode) -> int:
        """How many more games of the lane may be submitted now."""
        if not any(slots.share[lane] for slots in self.engines.values()):
            return 0
        return max(0, self._most.get(lane, 0) - self.outstanding(lane))

    def place(self, lane: Mode) -> str:
        """Choose the engine with the fewest games of the lane for its share, ties at random, and count the game there.

        Raises:
            LookupError: no engine has a share of the lane; `room` says so beforehand.
        """
        loads = {
            engine: slots.outstanding[lane] / slots.share[lane]
            for engine, slots in self.engines.items()
            if slots.share[lane]
        }
        if not loads:
            raise LookupError(f"no engine has a share of the {lane} lane")
        least = min(loads.values())
        engine = self._rng.choice([engine for engine, load in loads.items() if load == least])
        self.engines[engine].outstanding[lane] += 1
        return engine

    def finished(self, engine: str, lane: Mode) -> bool:
        """A game that was placed there has ended; an engine that has gone meanwhile is none of our concern.

        Returns:
            Whether shares were split anew: this engine has no more games of the lane, and one without a share has some,
            which could not begin there.
        """
        slots = self.engines.get(engine)
        if slots is None:
            return False
        slots.outstanding[lane] -= 1
        waits = any(
            other.ready and other.outstanding[lane] and not other.share[lane] for other in self.engines.values()
        )
        if slots.outstanding[lane] or not waits:
            return False
        self._split()
        return True

    def outstanding(self, lane: Mode) -> int:
        """Games of the lane submitted and not ended."""
        return sum(slots.outstanding[lane] for slots in self.engines.values())

    def in_flight(self, lanes: Iterable[Mode] = Mode) -> int:
        """Games executing, which never exceeds the quotas."""
        return sum(slots.in_flight(lane) for slots in self.engines.values() for lane in lanes)
