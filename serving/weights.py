"""Published weights in blobs: safetensors shards and, last, a manifest, so that a reader finds all or nothing.

weights/00000012/model.safetensors
weights/00000012/manifest.json      {"version", "digest", "parent", "shards": [{"name", "bytes", "checksum"}]}
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from blake3 import blake3

from core.errors import WeightsError
from core.ids import Version
from core.ports import Blobs, WeightsRef
from core.weights_digest import digest_of_shards

_MANIFEST = "manifest.json"


class _Shard(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    checksum: str


class _Manifest(msgspec.Struct, frozen=True):
    version: Version
    digest: str
    parent: Version | None
    shards: list[_Shard]


class BlobWeights:
    """`open` verifies a version once in a process: its shards' checksums and the digest over its tensors."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._verified: dict[tuple[Version, str], list[Path]] = {}

    def publish(self, version: Version, shards: Sequence[Path], parent: Version | None) -> WeightsRef:
        """Raises WeightsError when the version exists with other content, or a shard cannot be read."""
        digest = digest_of_shards(shards)
        path = f"{_folder(version)}/{_MANIFEST}"
        ref = WeightsRef(version=version, digest=digest, path=path, parent=parent)
        if self._blobs.exists(path):
            found = self._manifest(path).digest
            if found != digest:
                raise WeightsError(f"{path}: version {version} is published with digest {found}, not {digest}")
            return ref
        entries = [self._put(version, shard) for shard in shards]
        manifest = _Manifest(version=version, digest=digest, parent=parent, shards=entries)
        self._blobs.put(path, msgspec.json.format(msgspec.json.encode(manifest)))
        return ref

    def _put(self, version: Version, shard: Path) -> _Shard:
        self._blobs.put_file(f"{_folder(version)}/{shard.name}", shard)
        return _Shard(name=shard.name, bytes=shard.stat().st_size, checksum=_checksum(shard))

    def open(self, ref: WeightsRef) -> list[Path]:
        key = (ref.version, ref.digest)
        if key not in self._verified:
            self._verified[key] = self._fetch(ref)
        return self._verified[key]

    def _fetch(self, ref: WeightsRef) -> list[Path]:
        manifest = self._manifest(ref.path)
        if manifest.digest != ref.digest:
            raise WeightsError(f"{ref.path}: digest {manifest.digest}, version {ref.version} has {ref.digest}")
        shards = [self._shard(ref, entry) for entry in manifest.shards]
        digest = digest_of_shards(shards)
        if digest != ref.digest:
            raise WeightsError(f"{ref.path}: the tensors' digest is {digest}, not {ref.digest}")
        return shards

    def _shard(self, ref: WeightsRef, entry: _Shard) -> Path:
        path = f"{_folder(ref.version)}/{entry.name}"
        try:
            local = self._blobs.local(path)
        except FileNotFoundError as error:
            raise WeightsError(f"{path}: missing") from error
        except ValueError as error:
            raise WeightsError(f"{ref.path}: {error}") from error
        size = local.stat().st_size
        if size != entry.bytes:
            raise WeightsError(f"{path}: {size} bytes instead of {entry.bytes}")
        if _checksum(local) != entry.checksum:
            raise WeightsError(f"{path}: corrupt (its checksum is not the published one)")
        return local

    def _manifest(self, path: str) -> _Manifest:
        try:
            return msgspec.json.decode(self._blobs.get(path), type=_Manifest)
        except FileNotFoundError as error:
            raise WeightsError(f"{path}: missing") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WeightsError(f"{path}: no weights' manifest ({error})") from error

    def chain(self, ref: WeightsRef) -> list[WeightsRef]:
        """Full weights depend on nothing before them."""
        return [ref]

    def discard(self, version: Version) -> None:
        """The manifest first: half a version is none."""
        self._verified = {key: paths for key, paths in self._verified.items() if key[0] != version}
        paths = self._blobs.list(f"{_folder(version)}/")
        for path in sorted(paths, key=lambda path: not path.endswith(_MANIFEST)):
            self._blobs.delete(path)


def _folder(version: Version) -> str:
    return f"weights/{version:08d}"


def _checksum(path: Path) -> str:
    return str(blake3(path.read_bytes()).hexdigest())
