"""Second tries of failed tests, which cannot hide anything.

A test gets one where it waits for other processes, says nothing of loss, and stands in no file that the change
touches; none gets one where nobody knows what was changed. It runs alone, once, after everything else. If it passes,
it is FLAKY: printed with its first failure, and kept in a history that each later run shows. More than two of them, and
the check is red all the same. So it is where failed tests are not all that ended a part."""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from checks.records import Failure

MOST_TRIES = 3
MOST_FLAKY = 2
_SHOWN = 10
_OF_LOSS = re.compile(
    r"\b(lost|loses|losing|twice|missing_\w+|duplicates?|acknowledged)\b|tests/faults/|test_\w*kill", re.I
)


@dataclass(frozen=True)
class Flaky:
    """A test that failed first and passed alone."""

    test: str
    words: str


def deserving(failed: Iterable[Failure], changed: Collection[str] | None) -> list[Failure]:
    """Return the failures that get a second try.

    None do if there are more than anybody's bad luck explains, or where nobody knows what was changed: then any of
    them may be of a file that the change touches."""
    failed = list(failed)
    if changed is None or len(failed) > MOST_TRIES:
        return []
    return [each for each in failed if _deserves(each, changed)]


def _deserves(failure: Failure, changed: Collection[str]) -> bool:
    """Return whether a failure may be the machine's."""
    file = failure.test.partition("::")[0]
    says_loss = _OF_LOSS.search(failure.test) or _OF_LOSS.search(failure.words)
    return failure.is_collected and not says_loss and file not in changed


class History:
    """The flaky tests and the passed commits of earlier runs on this machine, as lines of JSON."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._flaky, self._passed = directory / "flaky.jsonl", directory / "passed.jsonl"

    def add_flaky(self, commit: str, date: str, found: Iterable[Flaky]) -> None:
        for each in found:
            self._add(self._flaky, {"commit": commit, "date": date, "test": each.test, "words": each.words[-2000:]})

    def add_passed(self, commit: str, date: str) -> None:
        self._add(self._passed, {"commit": commit, "date": date})

    def passed(self) -> list[str]:
        """Return the commits that passed whole, the newest first."""
        return [line["commit"] for line in reversed(self._lines(self._passed))]

    def shown(self) -> list[str]:
        """Return a line for each of the last flaky tests."""
        return [f"{line['date']}  {line['commit'][:10]}  {line['test']}" for line in self._lines(self._flaky)[-_SHOWN:]]

    def _add(self, file: Path, line: dict[str, str]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as kept:
            kept.write(json.dumps(line) + "\n")

    def _lines(self, file: Path) -> list[dict[str, str]]:
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
