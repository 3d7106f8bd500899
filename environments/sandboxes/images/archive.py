"""Reads an image archive: a folder or tar in OCI's layout, or the tar that `docker save` writes.

Both hold a configuration, which names the digest of each layer when unpacked; the configuration's own digest is the
image's. Formats: https://github.com/opencontainers/image-spec, `image-layout.md` and `config.md`."""

import gzip
import hashlib
import json
import platform
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from environments.errors import InfrastructureFailure

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class BadImage(InfrastructureFailure):
    """An archive is no image, or not the one that it says."""

    def __init__(self, message: str) -> None:
        super().__init__("image", message)


class Archive:
    """The files of an image archive, by name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def file(self, name: str) -> Iterator[IO[bytes]]:
        """Open one file. Raises BadImage where there is none."""
        try:
            if self._path.is_dir():
                with (self._path / name).open("rb") as found:
                    yield found
            else:
                with tarfile.open(self._path) as archive:
                    member = archive.extractfile(name)
                    if member is None:
                        raise BadImage(f"{self._path}: {name} is no file")
                    yield member
        except (OSError, KeyError, tarfile.TarError) as error:
            raise BadImage(f"{self._path}: {name} cannot be read: {error}") from error

    def json(self, name: str) -> Any:
        return json.loads(self.bytes(name))

    def bytes(self, name: str) -> bytes:
        with self.file(name) as found:
            return found.read()

    def has(self, name: str) -> bool:
        if self._path.is_dir():
            return (self._path / name).exists()
        with tarfile.open(self._path) as archive:
            return name in archive.getnames()


@dataclass(frozen=True)
class ImageManifest:
    """What an archive's image is made of: `layers` are names of files, `digests` those of their content unpacked."""

    digest: str
    config: Mapping[str, Any]
    layers: Sequence[str]
    digests: Sequence[str]


def manifest(archive: Archive) -> ImageManifest:
    """Return the archive's image, of this machine's kind where there are several. Raises BadImage."""
    name, layers = _oci(archive) if archive.has("index.json") else _docker(archive)
    content = archive.bytes(name)
    digest = hashlib.sha256(content).hexdigest()
    if digest not in name:
        raise BadImage(f"{name} has another digest, {digest}")
    config = json.loads(content)
    digests = config["rootfs"]["diff_ids"]
    if len(digests) != len(layers):
        raise BadImage(f"{name} names {len(digests)} layers, and there are {len(layers)}")
    return ImageManifest(f"sha256:{digest}", config.get("config") or {}, layers, digests)


@contextmanager
def unpacked(archive: Archive, layer: str) -> Iterator[IO[bytes]]:
    """Open a layer's tar, whatever it is compressed by."""
    with archive.file(layer) as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(_GZIP):
            with gzip.open(file) as content:
                yield cast(IO[bytes], content)
        elif start == _ZSTD:
            yield zstandard.ZstdDecompressor().stream_reader(file)
        else:
            yield file


def _docker(archive: Archive) -> tuple[str, Sequence[str]]:
    images = archive.json("manifest.json")
    if len(images) != 1:
        raise BadImage(f"there are {len(images)} images in it: save one alone")
    return images[0]["Config"], images[0]["Layers"]


def _oci(archive: Archive) -> tuple[str, Sequence[str]]:
    found = archive.json("index.json")
    while "manifests" in found:
        found = archive.json(_blob(_fitting(found["manifests"])["digest"]))
    return _blob(found["config"]["digest"]), [_blob(layer["digest"]) for layer in found["layers"]]


def _fitting(manifests: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    fitting = [each for each in manifests if each.get("platform", {}).get("architecture", machine) == machine]
    if len(fitting) != 1:
        raise BadImage(f"there are {len(fitting)} images for {machine} in it: one is needed")
    return fitting[0]


def _blob(digest: str) -> str:
    kind, _, value = digest.partition(":")
    if kind != "sha256" or not value.isalnum():
        raise BadImage(f"{digest} is no digest of sha256")
    return f"blobs/sha256/{value}"
