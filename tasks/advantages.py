"""Pure functions that turn the rewards of a batch into advantages. Standard library only.

All keep the order and the length. One reward alone, or rewards that are all equal, say nothing about what to do more
of: their advantages are exactly 0, never NaN.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Sequence

Normaliser = Callable[[Sequence[float]], list[float]]

_NOISE = 1e-9  # a spread below this share of the largest reward is rounding, not information


def z_score(rewards: Sequence[float]) -> list[float]:
    """(reward - mean) / standard deviation of the batch (population: divided by n)."""
    centred = mean_only(rewards)
    spread = math.hypot(*centred) / math.sqrt(max(len(centred), 1))
    return [value / spread for value in centred] if spread else centred


def mean_only(rewards: Sequence[float]) -> list[float]:
    """reward - mean of the batch (Dr. GRPO: Liu et al. 2025, arXiv 2503.20783, without the division)."""
    if not rewards or max(rewards) - min(rewards) <= _NOISE * max(map(abs, rewards)):
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


def by_key(normalise: Normaliser, rewards: Sequence[float], keys: Sequence[Hashable]) -> list[float]:
    """Normalise apart the rewards of each key, such as an environment: `keys[i]` is that of `rewards[i]`."""
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    result = [0.0] * len(rewards)
    for own in places.values():
        for place, value in zip(own, normalise([rewards[place] for place in own]), strict=True):
            result[place] = value
    return result
