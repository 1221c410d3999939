"""Differences between runs with the same seeds, and which of them may be claimed.

The same seed means the same initial weights and the same batches, so runs are compared seed by
seed. A single difference is claimed only if its 95 % interval (paired t over seeds) excludes 0.
When many methods are compared, the p-values of all pairs are corrected together (Holm).

>>> found = Difference.of({0: 70.0, 1: 71.0, 2: 72.0}, {0: 75.0, 1: 76.5, 2: 76.0, 3: 10.0})
>>> str(found), found.seeds, found.sign
('+4.83 ± 1.90', 3, 1)
>>> once = Difference.of({0: 70.0}, {0: 90.0})
>>> str(once), once.half, once.sign
('+20.00', None, 0)
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
FEWEST = 3
"""Seeds that two methods must share to be tested; two are too few to estimate a spread."""
SAME = 1e-9
"""Differences that spread no further than this, relative to their mean, are the same but for
rounding: they do not show how far they would spread."""


def half_width(values: Sequence[float]) -> float | None:
    """Of the 95 % interval of their mean; None for a single one, which shows no spread.

    >>> round(half_width([1.0, 2.0, 3.0]), 4), half_width([1.0])
    (2.4841, None)
    """
    n = len(values)
    if n < 2:
        return None
    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return quantile * statistics.stdev(values) / math.sqrt(n)


class Difference(NamedTuple):
    """By how much the second is above the first."""

    mean: float
    half: float | None
    """Half the width of its interval; None with a single seed, where there is no interval."""
    seeds: int

    @staticmethod
    def of(first: Mapping[int, float], second: Mapping[int, float]) -> "Difference | None":
        """From values by seed; seeds that only one side has are left out."""
        both = _differences(first, second)
        if not both:
            return None
        return Difference(statistics.fmean(both), half_width(both), len(both))

    @property
    def sign(self) -> int:
        """1 or -1 if the interval excludes 0, otherwise 0: nothing may be claimed."""
        if self.half is None or abs(self.mean) <= self.half or self.half <= SAME * abs(self.mean):
            return 0
        return 1 if self.mean > 0 else -1

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + ("" if self.half is None else f" ± {self.half:.2f}")

    @property
    def verdict(self) -> str:
        """What may be said."""
        if self.half is None:
            return "one seed: no claim"
        return {1: "**higher**", -1: "**lower**", 0: "inconclusive"}[self.sign]


class Better(NamedTuple):
    """A pair of methods of which one is significantly better."""

    winner: str
    loser: str
    p: float
    """Of the paired t-test, corrected for the number of pairs."""


def significant(
    by_seed: Mapping[str, Mapping[int, float]], level: float = 1 - CONFIDENCE
) -> list[Better]:
    """The pairs of methods whose difference may be claimed, surest first; higher values are better.

    Paired t-tests over the seeds that both methods have, with Holm's correction over all pairs.

    >>> runs = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 5.0, 1: 6.1, 2: 7.0}, "c": {0: 0.0, 1: 7.0}}
    >>> [(pair.winner, pair.loser) for pair in significant(runs)]
    [('b', 'a')]
    """
    tested = []
    for first, second in itertools.combinations(by_seed, 2):
        differences = _differences(by_seed[first], by_seed[second])
        if len(differences) >= FEWEST:
            higher = (second, first) if statistics.fmean(differences) > 0 else (first, second)
            tested.append((p_value(differences), higher))
    tested.sort()
    corrected = holm([p for p, _ in tested])
    return [Better(*pair, p) for (_, pair), p in zip(tested, corrected, strict=True) if p <= level]


def p_value(differences: Sequence[float]) -> float:
    """Two-sided, of the t-test that the mean of the differences is 0.

    1 for differences that are all the same.

    >>> round(p_value([1.0, 2.0, 3.0]), 4), p_value([85.34 - 76.62, 85.32 - 76.60, 8.72])
    (0.0742, 1.0)
    """
    n, mean, spread = len(differences), statistics.fmean(differences), statistics.stdev(differences)
    if spread <= SAME * abs(mean):
        return 1.0
    return float(2 * stdtr(n - 1, -abs(mean) * math.sqrt(n) / spread))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values of tests that are sorted by their p-values.

    >>> [round(p, 3) for p in holm([0.01, 0.02, 0.03, 0.9])]
    [0.04, 0.06, 0.06, 0.9]
    """
    count = len(p_values)
    scaled = (min(1.0, (count - rank) * p) for rank, p in enumerate(p_values))
    return list(itertools.accumulate(scaled, max))


def _differences(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    return [second[seed] - first[seed] for seed in first if seed in second]
