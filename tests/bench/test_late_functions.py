"""When the benchmark of late outcomes says that they cost a pretrained model's users little."""

from typing import Any

import pytest

from bench.late.late_functions import LAST, rows

PASSED = [0] * 64 + [0, 1] * 48
ON_TIME, LATE = "on time", "late"


def run(way: str, passed: list[int], **options: Any) -> dict[str, Any]:
    versions = [1] * 64 + [2] * (len(passed) - 64)
    late = {
        "way": way,
        "seed": 0,
        "late": 0 if way == ON_TIME else 64,
        "commit": "abc",
        "right_end": 0.5,
        "late_turns": 80,
    }
    return late | {"passed": passed, "versions": versions, "updates": 10} | options


def compared(passed: list[int], **options: Any) -> dict[str, Any]:
    return {row.metric.split(": ")[1]: row for row in rows([run(ON_TIME, PASSED), run(LATE, passed, **options)])}


@pytest.mark.parametrize(
    ("passed", "holds"),
    [
        pytest.param(PASSED, True, id="as good"),
        pytest.param([0] * 80 + [0, 1] * 40, True, id="a little later"),  # 120 failed, not 112
        pytest.param([0] * 160, False, id="never"),
    ],
)
def test_the_goal_is_of_what_failed_in_all_turns(passed: list[int], holds: bool) -> None:
    row = compared(passed)["failed of 160"]
    assert row.goal == 1.15
    assert row.ratio == pytest.approx((160 - sum(passed)) / 112)
    assert row.holds is holds


def test_what_can_be_lost_is_said_beside_it() -> None:
    row = compared([0, 1] * 16 + [0] * 32 + [0, 1] * 48)["failed of as many, had nothing been learned"]
    assert (row.value, row.goal) == (0.875, None), "of both ways' answers of the first version"
    assert row.ratio == pytest.approx(0.875 / 0.7)


def test_where_nothing_could_be_lost_the_goal_is_not_met() -> None:
    told = compared([0, 1] * 32 + [1] * 96)
    row = told["failed of 160 (too few turns to tell)"]
    assert row.ratio is not None
    assert row.ratio < 1 < told["failed of as many, had nothing been learned"].ratio < 1.15
    assert not row.holds


def test_how_many_late_turns_trained_by_clipping_is_said() -> None:
    assert compared(PASSED)["turns learned from that trained by asymmetric clipping"].value == 0.5


def test_the_time_in_which_nobody_can_know_is_left_out_of_one_row() -> None:
    row = compared([0] * 128 + [0, 1] * 16)["failed after the first 64, of which nobody can know"]
    assert row.value == pytest.approx(80 / 96)
    assert row.against == f"{ON_TIME} {80 / 96:.3f}"
    assert row.ratio == pytest.approx(1.0)


def test_a_run_that_was_cut_off_is_compared_over_its_own_turns() -> None:
    told = compared(PASSED[:96], right_end=None)
    assert told["failed of 96"].ratio == pytest.approx(1.0)
    assert told[f"failed of the last {LAST}"].value == pytest.approx(48 / 64)
    assert not any("held-out" in metric for metric in told)
