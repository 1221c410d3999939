"""Differences that may be claimed: against scipy's t-test and Holm's procedure by hand."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from parley.results.paired import Difference, holm, p_value, significant


def test_p_values_and_intervals_are_those_of_the_paired_t_test() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(80, 2, 5), rng.normal(82, 2, 5)
    expected = ttest_rel(second, first)
    assert p_value((second - first).tolist()) == pytest.approx(expected.pvalue)
    found = Difference.of(dict(enumerate(first)), dict(enumerate(second)))
    interval = expected.confidence_interval(0.95)
    assert found is not None and found.half is not None
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx(tuple(interval))


def test_holm_rejects_step_by_step() -> None:
    """With five tests at 5 %: thresholds 0.01, 0.0125, 0.0167, and no further once one fails."""
    raw = [0.009, 0.012, 0.03, 0.031, 0.04]
    assert [p <= 0.05 for p in holm(raw)] == [True, True, False, False, False]


def test_only_what_survives_the_correction_is_claimed() -> None:
    """b is 4 above a in every seed; c and d differ from nothing that could be claimed."""
    noise = {0: 0.3, 1: -0.2, 2: 0.1}
    runs = {
        "a": {seed: 70 + e for seed, e in noise.items()},
        "b": {seed: 74 + 0.99 * e for seed, e in noise.items()},
        "c": {0: 60.0, 1: 80.0, 2: 75.0},
        "d": {0: 99.0},
    }
    [claim] = significant(runs)
    assert (claim.winner, claim.loser) == ("b", "a")
    assert claim.p < 0.05


def test_equal_runs_are_never_different() -> None:
    same = {0: 1.0, 1: 2.0}
    assert significant({"a": same, "b": dict(same)}) == []
