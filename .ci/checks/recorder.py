"""A plugin of pytest: writes each failure, the seconds of each test, and the status with which all of them ended.

They go to $CHECK_RECORD, as lines of JSON."""

import json
import os
from typing import Any

_PLACE = os.environ.get("CHECK_RECORD")


def _write(line: dict[str, Any]) -> None:
    assert _PLACE is not None
    with open(_PLACE, "a") as record:
        record.write(json.dumps(line) + "\n")


def pytest_configure(config: Any) -> None:
    if _PLACE is None or hasattr(config, "workerinput"):  # workers' reports come to the first process
        config.pluginmanager.unregister(name="checks.recorder")


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        _write({"failed": report.nodeid, "when": report.when, "words": report.longreprtext})
    _write({"test": report.nodeid, "seconds": round(report.duration, 3)})


def pytest_sessionfinish(exitstatus: int) -> None:
    _write({"ended": int(exitstatus)})


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _write({"failed": report.nodeid, "when": "collect", "words": report.longreprtext})
