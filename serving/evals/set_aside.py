"""Cases that can be asked of no version, and what becomes of them: after three measurements they are set aside.

A case that cannot run holds the candidate, since nobody knows what it would have said. One that cannot run with the
live version either, again and again, says nothing of any candidate: its tests hang, or its program is gone. It would
hold every version for ever."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from core.telemetry import CASES_SET_ASIDE
from serving.evals.cases import Suite
from serving.evals.gate import GateDecision

TRIES: Final = 3
_MOST = 0.5  # of a suite's weight: where more of it cannot run, the machine or the budget is at fault, not the cases
_NAMED: Final = 5
logger = logging.getLogger(__name__)


class SetAside:
    """What the measurements of a suite, in this process, say of its cases."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._failures: Counter[str] = Counter()  # measurements in a row in which neither version could be asked it
        self._aside: dict[str, str] = {}  # why, by the case's name

    def asked(self) -> Suite:
        """Return the suite without the cases that are set aside."""
        if not self._aside:
            return self._suite
        cases = tuple(case for case in self._suite.cases if case.name not in self._aside)
        tasks = {name: folder for name, folder in self._suite.tasks.items() if name not in self._aside}
        return replace(self._suite, cases=cases, tasks=tasks)

    def noted(self, decision: GateDecision) -> GateDecision:
        """Count what could not run in a measurement of `asked`, and return its decision with what it left out."""
        left_out = dict(self._aside)
        failed = _with_neither(decision.unscored)
        self._failures = Counter({name: self._failures[name] + 1 for name in failed})
        beyond = {name: why for name, why in failed.items() if self._failures[name] >= TRIES}
        if beyond and self._weight({*self._aside, *beyond}) <= _MOST * self._weight(None):
            self._aside |= beyond
            CASES_SET_ASIDE.set(len(self._aside))
            logger.warning(
                "eval cases that could be asked of no version %d times are asked no more until the next start: %s",
                TRIES,
                _some(beyond),
            )
        if not left_out:
            return decision
        figures = {**decision.figures, "set_aside": len(left_out)}
        return replace(
            decision, why=f"{decision.why}; set aside, since they cannot run: {_some(left_out)}", figures=figures
        )

    def _weight(self, names: set[str] | None) -> float:
        return sum(case.weight for case in self._suite.cases if names is None or case.name in names)


def _with_neither(unscored: Mapping[str, str]) -> dict[str, str]:
    """Return the cases that neither side could be asked, and why not the live version."""
    live = {name.removeprefix("live: "): why for name, why in unscored.items() if name.startswith("live: ")}
    return {name: why for name, why in live.items() if f"candidate: {name}" in unscored}


def _some(missing: Mapping[str, str]) -> str:
    named = [f"{name} ({why})" for name, why in list(missing.items())[:_NAMED]]
    more = [f"and {len(missing) - _NAMED} more"] if len(missing) > _NAMED else []
    return "; ".join([*named, *more])
