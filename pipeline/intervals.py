"""How sure a share is: confidence intervals of proportions. Pure."""

from __future__ import annotations

import math

Z_95 = 1.959964
"""Standard normal quantile of a two-sided interval of 95 %."""


def wilson_interval(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Where the true share lies, given that many successes in independent trials: Wilson's score interval.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
    American Statistical Association 22 (1927), without continuity correction. Unlike the share plus or minus its
    standard error it stays in [0, 1] and says something at 0 and at 1.

    Returns:
        Its two ends; 0 and 1 where there were no trials, for then nothing is known.

    Raises:
        ValueError: there are more successes than trials, or fewer than none.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials; expected 0 <= successes <= trials.")
    if trials == 0:
        return 0.0, 1.0
    share, spread = successes / trials, z * z / trials
    centre = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    # At 0 and at 1 one end is exactly there; rounding must not put it beside.
    low = 0.0 if successes == 0 else (centre - half) / (1 + spread)
    high = 1.0 if successes == trials else (centre + half) / (1 + spread)
    return low, high
