"""Confidence sequences: intervals that hold at every look."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.statistics.sequential import confidence_sequence

ALPHA = 0.05
errors = st.floats(1e-3, 1e2)


@given(estimate=st.floats(-1, 1), se=errors, alpha=st.floats(1e-4, 0.5), scale=st.floats(0.01, 1))
def test_the_interval_is_centred_and_wider_than_one_for_a_single_look(
    estimate: float, se: float, alpha: float, scale: float
) -> None:
    found = confidence_sequence(estimate, se, alpha, scale)
    assert found.low + found.high == pytest.approx(2 * estimate, abs=1e-6 * (1 + found.high - found.low))
    assert (found.high - estimate) / se > math.sqrt(2 * math.log(1 / (2 * alpha))) if alpha < 0.25 else True


@given(se=errors, more=st.floats(1.01, 10), alpha=st.floats(1e-4, 0.4))
def test_it_narrows_with_evidence_and_widens_with_caution(se: float, more: float, alpha: float) -> None:
    reach = confidence_sequence(0, se, alpha, 0.1).high
    assert confidence_sequence(0, se * more, alpha, 0.1).high > reach
    assert confidence_sequence(0, se, alpha / more, 0.1).high > reach


def test_without_spread_it_is_certain_and_without_evidence_it_is_open() -> None:
    assert confidence_sequence(0.25, 0.0, ALPHA, 0.1).high == 0.25
    assert confidence_sequence(0.25, math.inf, ALPHA, 0.1).low == -math.inf
    assert confidence_sequence(0.25, math.nan, ALPHA, 0.1).high == math.inf


@pytest.mark.parametrize("side", [-1, 1])
def test_each_end_misses_at_any_of_many_looks_with_no_more_than_alpha(side: int) -> None:
    """Normal draws are examined after each of 4000; by the tenth look a plain z-interval would fail."""
    rng = np.random.default_rng(7)
    trials, looks = 1500, 4000
    counts = np.arange(1, looks + 1)
    reach = np.array([confidence_sequence(0.0, 1 / math.sqrt(n), ALPHA, 0.1).high for n in counts])
    missed = once = 0
    for _ in range(trials):
        means = side * rng.standard_normal(looks).cumsum() / counts
        missed += bool((means > reach).any())
        once += bool((means * np.sqrt(counts) > 1.645).any())
    assert missed / trials <= ALPHA
    assert missed / trials > ALPHA / 5  # and not by saying nothing
    assert once / trials > 5 * ALPHA
