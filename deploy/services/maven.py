"""Jars from Maven Central, each verified by its checksum: those of Kafka, and of a server of S3's API.

`jars/NAME.xml` says what is needed, `jars/NAME.sha256` the checksums, as `sha256sum` writes and checks them."""

import fcntl
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.services.programs import path_of
from deploy.services.server import ServiceError

_POMS = Path(__file__).parent / "jars"
_BUILD = Path(__file__).parents[2] / "build"


@dataclass(frozen=True)
class Jars:
    """The jars of one program, in a folder of `build/` whose name has its version."""

    name: str
    version: str

    @property
    def directory(self) -> Path:
        return _BUILD / f"{self.name}-{self.version}"

    def fetch(self) -> Path:
        """Return the directory of the jars, downloading them when they are not there. Raises ServiceError."""
        _BUILD.mkdir(exist_ok=True)
        with (_BUILD / f".{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.directory.exists():
                download = self._download()
                self._verify(download)
                download.rename(self.directory)
        return self.directory

    def pin(self) -> None:
        """Trust what Maven Central gives now: write the checksums anew."""
        found = _checksums(self._download())
        self._pins.write_text("".join(f"{checksum}  {name}\n" for name, checksum in sorted(found.items())))

    @property
    def _pins(self) -> Path:
        return _POMS / f"{self.name}.sha256"

    def _download(self) -> Path:
        target = self.directory.with_name(f"{self.directory.name}.partial")
        shutil.rmtree(target, ignore_errors=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
        command = [path_of("mvn"), "-q", "-B", "-f", str(_POMS / f"{self.name}.xml"), *goal]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceError(f"Maven could not fetch the jars of {self.name}:\n{done.stdout}{done.stderr}")
        return target

    def _verify(self, directory: Path) -> None:
        lines = (line.split() for line in self._pins.read_text().splitlines())
        pinned = {name: checksum for checksum, name in lines}
        found = _checksums(directory)
        wrong = sorted(name for name in pinned.keys() | found.keys() if pinned.get(name) != found.get(name))
        if wrong:
            raise ServiceError(f"the jars of {self.name} differ from the checksums in {self._pins}: {', '.join(wrong)}")


KAFKA = Jars("kafka", "4.3.1")
S3PROXY = Jars("s3proxy", "2.6.0")


def _checksums(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}
