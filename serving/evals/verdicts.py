"""The verdict on a candidate from cases and held-out users: one objection refuses it, one doubt holds it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from core.events import GateVerdict
from core.ids import PolicyRef
from serving.evals.gate import GateDecision

Action = Literal["refuse", "hold", "pass"]
BEST_FIRST = ("stated", "snips")  # see docs/decisions/0044-a-line-where-it-is-straight.md
_BENDS = " (their rewards bend as its answers become likelier: two estimates had to agree)"
LEFT = GateVerdict(action="ask", why="the service asks it its own cases")
_UNJUDGED = "nothing has judged it: neither cases nor users held out"


def of_cases(found: GateDecision, live: PolicyRef) -> GateVerdict:
    """`live`: the version that was asked the same."""
    figures = _named("cases", found.figures)
    return GateVerdict(action=found.action, why=f"cases: {found.why}", figures=figures, against=live)


def of_users(held_out: Mapping[str, Any], margin: float) -> GateVerdict:
    """`held_out`: of a replay's report. `margin`: of reward, by which it may have earned less."""
    if held_out["refused"] is not None:
        return GateVerdict(action="hold", why=f"users held out cannot say: {held_out['refused']}", figures={})
    gains = held_out["gains"]
    name = next(name for name in BEST_FIRST if name in gains)
    gain = gains[name]
    within = f"{gain['value']:+.3f}, within [{gain['low']:+.3f}, {gain['high']:+.3f}]"
    action, said = _decided(gain["low"], gain["high"], margin)
    bends = _BENDS if held_out.get("bends") else ""  # an older build's report says nothing of it
    return GateVerdict(action=action, why=f"users held out: {said}: {within}{bends}", figures=_named("gain", gain))


def together(found: Sequence[GateVerdict]) -> GateVerdict:
    """`against`: as of the last that has one."""
    if not found:
        return GateVerdict(action="hold", why=_UNJUDGED, figures={})
    figures = {name: value for each in found for name, value in each.figures.items()}
    worst: Action = next((a for a in ("refuse", "hold") if any(each.action == a for each in found)), "pass")
    against = next((each.against for each in reversed(found) if each.against is not None), None)
    return GateVerdict(action=worst, why="; ".join(each.why for each in found), figures=figures, against=against)


def _decided(low: float, high: float, margin: float) -> tuple[Action, str]:
    if high < 0:
        return "refuse", "it would have earned less"
    if low > -margin:
        return "pass", f"it would have earned no less by {margin:g}"
    return "hold", f"not shown to earn no less by {margin:g}"


def _named(prefix: str, figures: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": float(value) for name, value in figures.items()}
