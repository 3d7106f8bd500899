"""When the benchmark of words of failing tests says that they saved turns."""

from typing import Any

import pytest

from bench.words.function_words import WINDOW, compared, turns_until


def run(turns: int | None, taught: int = 480) -> dict[str, Any]:
    shares = {"taught_end": 0.5, "right_end": 0.4, "passed": [0, 1] * (taught // 2)}
    return {"seed": 0, "turns_until": turns, "taught": taught, "seconds": 900.0, "updates": 30, **shares}


def test_the_level_is_reached_where_the_last_answers_have_it() -> None:
    assert turns_until([0] * WINDOW + [1] * WINDOW) == WINDOW + 36  # of 64 the least that is 55 %
    assert turns_until([1] * (WINDOW - 1)) is None
    assert turns_until([0, 1] * WINDOW) is None


@pytest.mark.parametrize(
    ("alone", "told", "holds"),
    [
        pytest.param(300, 200, True, id="sooner"),
        pytest.param(300, 300, False, id="as soon"),
        pytest.param(None, 300, True, id="only with words"),
        pytest.param(None, None, False, id="never"),
        pytest.param(300, None, False, id="only without"),
    ],
)
def test_words_save_turns_only_where_the_level_was_reached_with_them(
    alone: int | None, told: int | None, holds: bool
) -> None:
    first = next(compared(run(alone), run(told)))
    assert first.holds is holds
    assert ("never" in first.metric) is (told is None)


def test_a_run_that_was_cut_off_is_no_success_and_is_compared_over_its_own_turns() -> None:
    cut = run(None, taught=100) | {"right_end": None, "passed": [1] * 100}
    told = {row.metric: row for row in compared(run(300), cut)}
    sooner = told["turns until 55% pass, with words (cut off before)"]
    assert (sooner.value, sooner.holds) == (100, False)
    right = told["right of the first 100 taught, with words"]
    assert (right.value, right.against) == (1.0, "0.50 without")
    assert not any("held-out" in metric for metric in told)
