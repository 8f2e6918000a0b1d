"""PURE.  Quantiles and tails of a binomial count, exact where they are used: far out, where a
normal curve is wrong."""

import math
from collections.abc import Iterator


def binomial_quantile(trials: int, share: float, probability: float) -> int:
    """Return the smallest count k with P(count <= k) >= *probability*.

    The count is how many of *trials* independent draws succeed, each with probability *share*.
    """
    if not (0 < share < 1 and 0 < probability < 1 and trials >= 1):
        raise ValueError("needs shares strictly between 0 and 1, and at least one trial")
    if probability > 0.5:
        # Summed from the other end, where no digits are lost to "1 minus almost nothing".
        failures, limit = 0.0, 1 - probability
        for k, weight in _weights(trials, 1 - share):
            failures += weight
            if failures > limit:
                return trials - k
        return 0
    total = 0.0
    for k, weight in _weights(trials, share):
        total += weight
        if total >= probability:
            return k
    return trials


def sign_test(more: int, less: int) -> float:
    """Return how likely a fair coin shows at least *more* heads in *more* + *less* throws."""
    total = 0.0
    for k, weight in _weights(more + less, 0.5) if more + less else ():
        if k > less:
            break
        total += weight
    # At least `more` heads are at most `less` tails, and the coin is fair.
    return min(1.0, total) if more + less else 1.0


def _weights(trials: int, share: float) -> Iterator[tuple[int, float]]:
    """Yield k and P(count = k), from 15 deviations below the mean, where nothing is left to add."""
    deviation = math.sqrt(trials * share * (1 - share))
    k = max(0, math.floor(trials * share - 15 * deviation - 15))
    weight = math.exp(
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(share)
        + (trials - k) * math.log1p(-share)
    )
    odds = share / (1 - share)
    while True:
        yield k, weight
        if k == trials:
            return
        weight *= (trials - k) / (k + 1) * odds
        k += 1
