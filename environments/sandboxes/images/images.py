"""Keeps unpacked images by their digest, each a file system that sandboxes stand on."""

import hashlib
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from environments.sandboxes import owners
from environments.sandboxes.images.archive import Archive, BadImage, ImageManifest, manifest, unpacked
from environments.sandboxes.images.layers import unpack
from environments.sandboxes.sandbox import SandboxSpec

_MALFORMED = (
    *(OSError, EOFError, ValueError, ArithmeticError, RecursionError),
    *(tarfile.TarError, zlib.error, zstandard.ZstdError),
)


@dataclass(frozen=True)
class Image:
    """An unpacked image: a root that is never written, layers over it, and what its author set for commands.

    `digest` names its algorithm, as `sha256:…` of an engine's images: turns say it of themselves."""

    digest: str
    root: Path
    layers: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"

    @property
    def spec(self) -> SandboxSpec:
        """A sandbox over this image, as its author meant it to be started."""
        return SandboxSpec(workdir=self.workdir, root=self.root, layers=self.layers, environment=self.environment)


class UnpackedImages:
    """The images in one directory, which only its owner may enter: an image's files are not to be trusted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, archive: Path) -> Image:
        """Return the archive's image, unpacked once. Raises BadImage."""
        source = Archive(archive)
        wanted = manifest(source)
        if not self._place(wanted.digest).exists():
            self._make(source, wanted, self._place(wanted.digest))
        image = self.kept(wanted.digest)
        assert image is not None, "it was made"
        return image

    def kept(self, digest: str) -> Image | None:
        """Return the image of that digest; None where it was not unpacked here."""
        place = self._place(digest)
        if not place.exists():
            return None
        told = json.loads((place / "image.json").read_text())
        return Image(digest, place / "root", (), told["environment"], told["workdir"])

    def _place(self, digest: str) -> Path:
        return self._directory / digest.replace(":", "-")

    def _make(self, source: Archive, wanted: ImageManifest, place: Path) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        made = owners.folder_in_the_making(self._directory, "image")
        try:
            (made / "root").mkdir()
            for layer, digest in zip(wanted.layers, wanted.digests, strict=True):
                _unpack_checked(source, layer, digest, made / "root")
            (made / "image.json").write_text(json.dumps(_told(wanted.config)))
            os.rename(made, place)
        except _MALFORMED as error:
            if not place.exists():  # no other process was first
                raise BadImage(f"it cannot be unpacked: {error}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)


class _Hashing(RawIOBase):
    """A stream that hashes what is read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.hashed = stream, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self.hashed.update(piece)
        return piece


def _unpack_checked(source: Archive, layer: str, digest: str, root: Path) -> None:
    with unpacked(source, layer) as content:
        stream = _Hashing(content)
        unpack(cast(IO[bytes], stream), root)
        while stream.read(1 << 20):  # what follows the last entry belongs to the digest
            pass
    if f"sha256:{stream.hashed.hexdigest()}" != digest:
        raise BadImage(f"{layer} is not the layer {digest} that its configuration names")


def _told(config: Mapping[str, Any]) -> dict[str, Any]:
    environment = dict(each.split("=", 1) for each in config.get("Env") or [])
    return {"environment": environment, "workdir": config.get("WorkingDir") or "/"}
