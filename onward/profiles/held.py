"""A running service held to its profile: what it takes, beside what it is expected to take."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from core.errors import ConfigError
from core.profile import Expectation
from core.profile.words import gigabytes
from onward.directory.layout import Layout
from onward.wiring.disk import bytes_of_hosts

_MARGIN = 1.25
"""The largest measured figure that passes, as a multiple of the expected one."""
_SERVED = 'onward_feedback_to_served_quantile_seconds{quantile="0.5"}'


@dataclass(frozen=True)
class Running:
    """The processes of the service that runs on a directory, on this machine."""

    service: psutil.Process
    learner: psutil.Process | None


def running(layout: Layout) -> Running | None:
    """Return the processes, or None where no service runs here."""
    try:
        service = psutil.Process(json.loads(layout.address.read_text())["pid"])
        children = service.children()
        return Running(service, next((child for child in children if "learn" in child.cmdline()), None))
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None


def fits(expected: Expectation, memory_bytes: int) -> str:
    """Compare what a service takes when all is full with the machine's memory. Raises ConfigError."""
    most = expected.service_bytes + expected.learner_most_bytes
    if most > memory_bytes:
        raise ConfigError(f"full slots and the longest session take {gigabytes(most)} of {gigabytes(memory_bytes)}")
    return f"{gigabytes(most)} of {gigabytes(memory_bytes)} when all slots are full and a session is as long as can be"


def memory(process: psutil.Process, expected_bytes: int) -> str:
    """Compare a process's memory with what is expected. Raises ConfigError when it has more."""
    return _held(process.memory_info().rss, expected_bytes, gigabytes)


def disk(layout: Layout, expected_bytes: int) -> str:
    """Compare versions and checkpoints on disk with what is expected. Raises ConfigError when there is more."""
    files = (path for root in (layout.blobs, layout.learner) for path in root.rglob("*"))
    merged = bytes_of_hosts(layout)
    found = merged + sum(path.stat().st_size for path in files if path.is_file())
    told = _held(found, expected_bytes, gigabytes)
    return f"{told}; {gigabytes(merged)} of it are versions as engines load them" if merged else told


def served(samples: Mapping[str, float], expected_s: float) -> str:
    """Compare the time from feedback to served with what is expected. Raises ConfigError when it is longer."""
    seconds = samples.get(_SERVED)
    return (
        "nothing that has arrived since the start is served yet"
        if seconds is None
        else _held(seconds, expected_s, lambda value: f"{value:.0f} s")
    )


def _held(found: float, expected: float, words: Callable[[float], str]) -> str:
    if found > _MARGIN * expected:
        raise ConfigError(f"{words(found)}, where {words(expected)} are expected")
    return f"{words(found)}, of {words(expected)} that are expected"
