"""What a running service takes of memory and disk, and what it says of itself."""

import statistics
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LOOK_S = 1.0
SERVED = 'onward_feedback_to_served_quantile_seconds{{quantile="{}"}}'


@dataclass
class Watch:
    """The most memory of service and learner, and the disk of each version, as the run goes on."""

    directory: Path
    service: psutil.Process
    service_bytes: int = 0
    learner_bytes: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        while not self.over.wait(LOOK_S):
            self.service_bytes = max(self.service_bytes, self.service.memory_info().rss)
            for child in self.service.children():
                if "learn" in child.cmdline():
                    self.learner_bytes = max(self.learner_bytes, child.memory_info().rss)
            for name, size in files_of_versions(self.directory / "blobs"):
                self.versions[name] = max(self.versions.get(name, 0), size)

    @property
    def version_bytes(self) -> float:
        """The median over all versions but the first, which is the given model."""
        return statistics.median(size for name, size in self.versions.items() if name > f"{1:08d}")


def files_of_versions(blobs: Path) -> Iterator[tuple[str, int]]:
    """Yield each version's number, as files are named, and the bytes of all of its files."""
    found: dict[str, int] = {}
    for path in blobs.rglob("*"):
        number = next((part[:8] for part in path.relative_to(blobs).parts if part[:8].isdigit()), None)
        if number is not None and path.is_file():
            found[number] = found.get(number, 0) + size_of(path)
    yield from found.items()


def size_of(path: Path) -> int:
    """Return a file's bytes, 0 where it is gone by now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def samples_of(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("onward_"))
    return {name: float(value) for name, _, value in pairs}
