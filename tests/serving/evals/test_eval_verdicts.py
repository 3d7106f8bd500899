"""One objection refuses a candidate, and one doubt holds it."""

import pytest

from core.events import GateVerdict
from core.ids import base_ref
from serving.evals.gate import GateDecision
from serving.evals.verdicts import of_cases, of_users, together


def held_out(low: float, value: float, high: float) -> dict[str, object]:
    return {
        "refused": None,
        "gains": {"snips": {"low": -9, "value": -9, "high": -8}, "stated": {"low": low, "value": value, "high": high}},
    }


@pytest.mark.parametrize(
    ("gain", "action", "said"),
    [
        ((0.01, 0.05, 0.09), "pass", "no less by 0.05: +0.050, within [+0.010, +0.090]"),
        ((-0.049, 0.0, 0.05), "pass", "no less by 0.05"),
        ((-0.051, 0.0, 0.05), "hold", "not shown to earn no less by 0.05"),
        ((-0.09, -0.05, -0.001), "refuse", "it would have earned less"),
    ],
)
def test_what_users_held_out_say(gain: tuple[float, float, float], action: str, said: str) -> None:
    """The most trusted of several estimates counts."""
    found = of_users(held_out(*gain), 0.05)
    assert found.action == action
    assert said in found.why
    assert found.figures == {"gain_low": gain[0], "gain_value": gain[1], "gain_high": gain[2]}


def test_it_is_said_when_two_estimates_had_to_agree() -> None:
    said = [of_users(held_out(0.01, 0.05, 0.09) | {"bends": bends}, 0.05).why for bends in (False, True)]
    assert said[1] == f"{said[0]} (their rewards bend as its answers become likelier: two estimates had to agree)"


def test_users_who_cannot_tell_hold_it_and_say_why() -> None:
    found = of_users({"refused": "12 users, not 30", "gains": {}}, 0.05)
    assert (found.action, found.why) == ("hold", "users held out cannot say: 12 users, not 30")


def test_all_that_was_asked_has_a_say() -> None:
    cases = of_cases(GateDecision("pass", "no worse", {"cases": 40, "low": -0.02}), base_ref(3))
    assert cases.against == base_ref(3)
    worse, unsure = (GateVerdict(action=action, why=action) for action in ("refuse", "hold"))
    assert together([cases]).action == "pass"
    assert [together(found).against for found in ([unsure, cases], [cases, worse], [worse])] == [
        base_ref(3),
        base_ref(3),
        None,
    ]
    assert together([cases, unsure]).action == "hold"
    assert together([unsure, cases, worse]).action == "refuse"
    assert together([cases, worse]).why == "cases: no worse; refuse"
    assert together([cases, worse]).figures == {"cases_cases": 40.0, "cases_low": -0.02}


def test_what_nothing_has_judged_does_not_pass() -> None:
    assert together([]).action == "hold"
