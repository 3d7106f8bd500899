"""One check, from its first part to its last second try."""

import os
import shlex
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from checks import parts, plan, records
from checks.commands import TIMED_OUT, run
from checks.containers import Containers
from checks.outcome import Outcome, Result
from checks.parts import Part
from checks.second_tries import Flaky, History, deserving

_TRY_S = 240
_SLOWEST = 5


class Check:
    """A check of what is checked out in `root`. What it finds is in `outcome`, and after each part in its file.

    `base` is a commit that passed, if one is known from elsewhere than the history."""

    def __init__(self, root: Path, name: str, chosen: Sequence[Part], history: History, base: str = "") -> None:
        self._root, self._parts, self._history = root, chosen, history
        self._file, self._records = root / "build" / f"{name}.json", root / "build" / f"{name}-records"
        self._containers = Containers(root / "build" / "containers", history.directory.parent / "images")
        self._changed = plan.changed_since([base, *history.passed()])
        self._began_s = time.monotonic()
        self.outcome = Outcome(plan.head(), datetime.now(UTC).isoformat(timespec="seconds"))

    def run(self) -> bool:
        """Run all parts, then second tries, and return whether all is well."""
        shutil.rmtree(self._records, ignore_errors=True)
        self._records.mkdir(parents=True)
        for line in self._history.shown():
            print(f"was flaky before: {line}")
        if any(part.wants_containers for part in self._parts):
            self._containers.begin()
        try:
            self._run_parts()
            self._try_again()
            self.outcome.passed = self.outcome.is_good()
        finally:
            self._containers.remove()
            run("make --no-print-directory services-down", _TRY_S)
            self._note()
            print(self.outcome.table(), flush=True)
        self._remember()
        return self.outcome.passed

    def _remember(self) -> None:
        date = self.outcome.started[:10]
        self._history.add_flaky(self.outcome.commit, date, self.outcome.flaky)
        if self.outcome.passed and self._file.stem == "ci" and plan.is_clean():
            self._history.add_passed(self.outcome.commit, date)

    # ------------------------------------------------------------------------------------------ parts

    def _run_parts(self) -> None:
        table = plan.read(self._root / ".ci" / "plan")
        called = None if self._changed is None else plan.called_for(table, self._changed)
        for part in self._parts:
            reason = self._reason_to_skip(part, called)
            if reason:
                self._add(part, 0, reason)
            elif self._run_part(part) != "passed" and part.is_needed:
                break

    def _reason_to_skip(self, part: Part, called: frozenset[str] | None) -> str:
        if part.is_optional and called is not None and part.name not in called:
            return "not called for"
        if part.is_optional and self._seconds() + part.budget_s > parts.SKIP_AFTER_S:
            return "SKIPPED for time"
        return ""

    def _run_part(self, part: Part) -> str:
        began_s, left_s = time.monotonic(), self._left_s(part)
        print(f"\n===== {part.name}: {part.command} (budget {part.budget_s} s)", flush=True)
        status = 1
        environment = self._environment_of(part, left_s)
        if environment is not None:
            status = run(_with_what_is_kept(part), left_s, environment)
        result = {0: "passed", TIMED_OUT: "timed out"}.get(status, "failed")
        self._add(part, round(time.monotonic() - began_s), result)
        return result

    def _environment_of(self, part: Part, limit_s: float) -> dict[str, str] | None:
        """Return what a part is told besides our own environment; None if it has no containers to run on."""
        ready = self._containers.wait(limit_s) if part.wants_containers else {}
        if ready is None:
            return None
        record = {"CHECK_RECORD": str(self._records / part.name)}
        return record | dict(part.environment) | ready

    def _add(self, part: Part, seconds: int, result: str) -> None:
        record = self._records / part.name
        self.outcome.parts.append(Result(part.name, seconds, part.budget_s, result))
        self.outcome.failed += [each.test for each in records.failures(record)]
        for test, took_s in records.slowest(record, _SLOWEST):
            print(f"{took_s:8.1f} s  {test}")
        print(f"===== {part.name}: {result}, {seconds} s, budget {part.budget_s} s", flush=True)
        self._note()

    # ------------------------------------------------------------------------------------------ second tries

    def _try_again(self) -> None:
        """Give those tests a second try that deserve it; a part of which each failure passes then has passed."""
        of = {part.name: part for part in self._parts if part.may_be_tried_again}
        failed = {name: records.failures(self._records / name) for name in of}
        chosen = deserving([each for found in failed.values() for each in found], self._changed)
        for number, result in enumerate(self.outcome.parts):
            ours = [each for each in failed.get(result.name, []) if each in chosen]
            good = [self._passes_alone(each, of[result.name]) for each in ours]
            all_of_it = ours == failed.get(result.name) and records.was_ended_by_failures(self._records / result.name)
            if result.result == "failed" and all_of_it and ours and all(good):
                self.outcome.parts[number] = Result(result.name, result.seconds, result.budget, "passed, FLAKY")

    def _passes_alone(self, failure: records.Failure, part: Part) -> bool:
        print(f"\n===== once more, alone: {failure.test}", flush=True)
        environment = self._environment_of(part, _TRY_S)
        command = f".venv/bin/python -m pytest -n0 -m '' {shlex.quote(failure.test)}"
        if environment is None or run(command, _TRY_S, environment | {"CHECK_RECORD": os.devnull}):
            return False
        self.outcome.failed.remove(failure.test)
        self.outcome.flaky.append(Flaky(failure.test, failure.words))
        return True

    # ------------------------------------------------------------------------------------------ time

    def _seconds(self) -> float:
        return time.monotonic() - self._began_s

    def _left_s(self, part: Part) -> float:
        """Return after how many seconds a part is ended."""
        return max(1.0, min(parts.PATIENCE * max(part.budget_s, part.anew_s), parts.END_AFTER_S - self._seconds()))

    def _note(self) -> None:
        self.outcome.seconds = round(self._seconds())
        self.outcome.write(self._file)


def _with_what_is_kept(part: Part) -> str:
    """Return the command of a part, which begins with what an earlier check has kept and keeps what it made."""
    if not part.makes:
        return part.command
    return f".ci/cache.sh restore {part.makes}; {part.command} && {{ .ci/cache.sh keep {part.makes} || true; }}"
