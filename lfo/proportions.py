"""How sure a share of successes is. Plain numbers in and out, no torch: core and laboratory both count successes."""

from __future__ import annotations

from scipy import stats


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson 95% score interval of a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    interval = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)
