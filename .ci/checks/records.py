"""What the recorder wrote: failures in their order, how pytest ended, and where the seconds of the tests went."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_PASSED, _TESTS_FAILED = 0, 1  # what pytest ends with


@dataclass(frozen=True)
class Failure:
    """A test that failed, or a file that could not be collected; `words` as pytest shows them."""

    test: str
    words: str
    is_collected: bool = True


def _lines(record: Path) -> list[dict[str, str | float]]:
    """Return whole lines; the last one may be cut off by a kill."""
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text().splitlines(keepends=True) if line.endswith("\n")]


def failures(record: Path) -> list[Failure]:
    """Return each failed test once, with its first failure."""
    found: dict[str, Failure] = {}
    for line in _lines(record):
        if "failed" in line:
            test = str(line["failed"])
            found.setdefault(test, Failure(test, str(line["words"]), line["when"] != "collect"))
    return list(found.values())


def was_ended_by_failures(record: Path) -> bool:
    """Return whether failed tests are all that was wrong: every run of pytest went on to its end without an error."""
    ended = [line["ended"] for line in _lines(record) if "ended" in line]
    return bool(ended) and set(ended) <= {_PASSED, _TESTS_FAILED}


def slowest(record: Path, count: int) -> list[tuple[str, float]]:
    """Return the tests that took longest, set-up and all, with their seconds."""
    seconds: Counter[str] = Counter()
    for line in _lines(record):
        if "test" in line:
            seconds[str(line["test"])] += float(line["seconds"])  # type: ignore[assignment]
    return seconds.most_common(count)
