"""Kafka's jars from Maven Central, each verified by its checksum."""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from deploy.services.programs import path_of
from deploy.services.server import ServiceError

_HERE = Path(__file__).parent
_POM = _HERE / "pom.xml"
_PINS = _HERE / "jars.sha256"  # as `sha256sum` writes and checks it
JARS = _HERE.parents[1] / "build" / "kafka-4.3.1"


def fetch() -> Path:
    """Return the directory of the jars, downloading them when they are not there. Raises ServiceError."""
    JARS.parent.mkdir(exist_ok=True)
    with (JARS.parent / ".kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not JARS.exists():
            download = _download()
            _verify(download)
            download.rename(JARS)
    return JARS


def pin() -> None:
    """Trust what Maven Central gives now: write the checksums anew."""
    found = _checksums(_download())
    _PINS.write_text("".join(f"{checksum}  {name}\n" for name, checksum in sorted(found.items())))


def _download() -> Path:
    target = JARS.with_suffix(".partial")
    shutil.rmtree(target, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    done = subprocess.run(
        [path_of("mvn"), "-q", "-B", "-f", str(_POM), *goal], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServiceError(f"Maven could not fetch Kafka:\n{done.stdout}{done.stderr}")
    return target


def _verify(directory: Path) -> None:
    pinned = {name: checksum for checksum, name in (line.split() for line in _PINS.read_text().splitlines())}
    found = _checksums(directory)
    wrong = sorted(name for name in pinned.keys() | found.keys() if pinned.get(name) != found.get(name))
    if wrong:
        raise ServiceError(f"Kafka's jars differ from the checksums in {_PINS}: {', '.join(wrong)}")


def _checksums(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}
