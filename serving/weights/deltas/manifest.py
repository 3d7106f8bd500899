"""The files beside a version's weights, and their paths.

weights/00000012/manifest.json                  last: with it the version is there
weights/00000012/model.safetensors              a full version: its shards
weights/00000014/adapter.safetensors            an adapter: its shards, upon a base that every host has
weights/00000013/delta-00000012.bin             a delta: its name says which version it needs
weights/00000012/link.json                      the manifest of a discarded version that another one needs"""

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec

from core import codec
from core.errors import WeightsError
from core.ids import PolicyRef
from core.ports import AdapterConfig, Blobs, WeightsRef

FORMAT = 2  # of deltas
_DELTA = re.compile(r"weights/([^/]+)/delta-([^/]+)\.(?:bin|safetensors)")


Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class File(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    checksum: str  # BLAKE3


class ChangedTensor(msgspec.Struct, frozen=True):
    bytes: int  # encoded
    digest: str  # BLAKE3 (128 bits) over the bytes that it has afterwards


class Delta(msgspec.Struct, frozen=True):
    base: PolicyRef
    base_digest: Digest
    depth: int  # deltas from the anchor to here
    file: File
    tensors: dict[str, ChangedTensor]
    format: int = 1  # of the file; format 1 did not say so


class WeightsManifest(msgspec.Struct, frozen=True, omit_defaults=True):
    version: PolicyRef
    digest: Digest
    parent: PolicyRef | None
    shards: list[File]  # of full weights, or of an adapter
    delta: Delta | None = None
    adapter: AdapterConfig | None = None

    @property
    def size(self) -> int:
        """What the version takes of the blobs, besides this manifest."""
        return sum(file.bytes for file in self.shards) + (self.delta.file.bytes if self.delta else 0)

    def encode(self) -> bytes:
        """Full ones for the eye, deltas for the wire."""
        raw = msgspec.json.encode(self, enc_hook=codec.plain)
        return raw if self.delta else msgspec.json.format(raw)


def folder(version: PolicyRef) -> str:
    return f"weights/{version.padded}"


def manifest_path(version: PolicyRef) -> str:
    return f"{folder(version)}/manifest.json"


def link_path(version: PolicyRef) -> str:
    return f"{folder(version)}/link.json"


def delta_name(base: PolicyRef) -> str:
    return f"delta-{base.padded}.bin"


def needed(paths: Iterable[str]) -> set[PolicyRef]:
    """Return the versions that a delta among these blobs needs."""
    bases = (version_in(match[2]) for path in paths if (match := _DELTA.fullmatch(path)))
    return {base for base in bases if base is not None}


def bases_among(paths: Iterable[str]) -> dict[PolicyRef, PolicyRef | None]:
    """Return the versions that have a manifest among these blobs, each with the one that its delta needs."""
    known = set(paths)
    upon = {version_in(match[1]): version_in(match[2]) for path in known if (match := _DELTA.fullmatch(path))}
    found = (version_in(path.split("/")[1]) for path in known if path.endswith("/manifest.json"))
    return {version: upon.get(version) for version in found if version is not None}


def ref_to(path: str, manifest: WeightsManifest) -> WeightsRef:
    return WeightsRef(
        version=manifest.version, digest=manifest.digest, path=path, parent=manifest.parent, size=manifest.size
    )


def version_in(name: str) -> PolicyRef | None:
    """Return the version that a folder or a delta is called by; None for a name that is not ours."""
    try:
        return PolicyRef.parse_padded(name)
    except ValueError:
        return None


def read_manifest(blobs: Blobs, path: str) -> WeightsManifest:
    """Read a manifest. Raises WeightsError naming one that is missing or invalid."""
    try:
        manifest = msgspec.json.decode(blobs.get(path), type=WeightsManifest, dec_hook=codec.typed)
    except FileNotFoundError as error:
        raise WeightsError(f"{path}: missing") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WeightsError(f"{path}: not a manifest of weights ({error})") from error
    if path.rpartition("/")[0] != folder(manifest.version):
        raise WeightsError(f"{path}: the manifest of version {manifest.version}")
    if manifest.delta and manifest.delta.base >= manifest.version:
        raise WeightsError(f"{path}: not a manifest of weights (version {manifest.version} upon {manifest.delta.base})")
    if manifest.delta and manifest.adapter:
        raise WeightsError(f"{path}: not a manifest of weights (both a delta and an adapter)")
    return manifest


def read_base(blobs: Blobs, delta: Delta) -> tuple[str, WeightsManifest]:
    """Path and manifest of what a delta needs, discarded or not. Raises WeightsError naming it."""
    path = manifest_path(delta.base)
    if not blobs.exists(path) and blobs.exists(link_path(delta.base)):
        path = link_path(delta.base)
    manifest = read_manifest(blobs, path)
    if manifest.digest != delta.base_digest:
        raise WeightsError(f"{path}: digest {manifest.digest}, and the delta upon it needs {delta.base_digest}")
    return path, manifest
