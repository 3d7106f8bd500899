"""Published weights in blobs: full versions, deltas between them, adapters, and a manifest that is written last.

So a reader finds all or nothing (`serving.weights.deltas.manifest` has the paths).

A version is a delta upon its parent when that is published, has the same layout, and is fewer than `anchor_every` - 1
deltas from its anchor, and when the delta is worth the work: a sample must promise at most 0.5 of the full bytes, and
the whole delta must not be larger than that. An adapter is neither a delta nor what a delta is made upon.

A discarded version cannot be opened any more. While a delta needs it, its files stay and its manifest becomes a mere
link of the chain; they are deleted with the last version that needs them. A publisher first names what it needs (in the
delta's file name) and then checks that it is still there; `discard` first removes the manifest and then looks for
versions that need it. So, whatever happens at the same time, one of them sees the other."""

import logging
import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from blake3 import blake3

from core.errors import ConfigError, WeightsError
from core.ids import PolicyRef
from core.model.adapters import digest_of_version, digest_upon, low_rank_of
from core.model.beside import paths_beside
from core.model.weights_digest import PassingDigest, checksum_of
from core.ports import AdapterConfig, Blobs, Opened, WeightsRef
from serving.weights.cache import Fingerprint, VersionCache, fingerprint, link_or_copy
from serving.weights.deltas.checkpoint import layout
from serving.weights.deltas.delta import DeltaStep, apply, encode
from serving.weights.deltas.manifest import (
    FORMAT,
    Delta,
    File,
    WeightsManifest,
    bases_among,
    delta_name,
    folder,
    link_path,
    manifest_path,
    needed,
    read_base,
    read_manifest,
    ref_to,
    version_in,
)
from serving.weights.sample import promised_share
from serving.weights.sharing.peers import Peers

logger = logging.getLogger(__name__)

_WORTH = 0.5  # of the full bytes: beyond it a delta saves little for the time that it takes (decision 7)


class BlobWeights:
    """Implements core.ports.Weights. Thread-safe; any number of processes may share blobs and cache.

    `open` verifies what it reads: each file's checksum before it is used, and the digest over the tensors. What it
    returned once is read again by the same process only if it was touched since.
    """

    def __init__(
        self,
        blobs: Blobs,
        cache: Path | None = None,
        anchor_every: int = 25,
        cached_versions: int = 4,
        peers: Peers | None = None,
    ) -> None:
        """Open published weights. `cache`: a directory for the `cached_versions` last used versions.

        `peers`: other hosts, which remote blobs' files are fetched from where they have them.

        Full versions in local blobs need no cache. Without one every version is published full, and a delta cannot be
        opened."""
        self._blobs = blobs
        self._cache = VersionCache(cache, cached_versions) if cache else None
        self._anchor_every = anchor_every
        self._peers = peers
        self._in_place: dict[str, tuple[list[Path], Fingerprint]] = {}  # verified, by digest

    # ------------------------------------------------------------------------------------------ publish

    def publish(
        self,
        version: PolicyRef,
        shards: Sequence[Path],
        parent: PolicyRef | None,
        adapter: AdapterConfig | None = None,
    ) -> WeightsRef:
        """Publish a version.

        Raises WeightsError when it exists with other content, when a shard cannot be read, or is no adapter's."""
        if adapter is not None:
            low_rank_of(shards, adapter)
        if known := self._published(version, shards, adapter):
            return known
        for left in self._blobs.list(f"{folder(version)}/"):  # by an attempt that was cut off
            self._blobs.delete(left)
        shards = sorted(shards, key=lambda shard: shard.name)
        manifest = None if adapter else self._publish_delta(version, parent, shards)
        manifest = manifest or self._publish_files(version, parent, shards, adapter)
        self._blobs.put(manifest_path(version), manifest.encode())
        if self._cache and (manifest.delta or not self._blobs.is_local):
            self._keep(self._cache, manifest.digest, shards, adapter)
        return ref_to(manifest_path(version), manifest)

    def _published(
        self, version: PolicyRef, shards: Sequence[Path], adapter: AdapterConfig | None
    ) -> WeightsRef | None:
        """Return the reference of a version that is published. A discarded one that is still a link is restored."""
        path, link = manifest_path(version), link_path(version)
        found = next((each for each in (path, link) if self._blobs.exists(each)), None)
        if found is None:
            return None
        manifest, digest = read_manifest(self._blobs, found), digest_of_version(shards, adapter)
        if manifest.digest != digest:
            raise WeightsError(f"{found}: version {version} is published with digest {manifest.digest}, not {digest}")
        if found == link:
            self._blobs.put(path, self._blobs.get(link))
            self._blobs.delete(link)
        return ref_to(path, manifest)

    def _publish_files(
        self, version: PolicyRef, parent: PolicyRef | None, shards: Sequence[Path], adapter: AdapterConfig | None
    ) -> WeightsManifest:
        """Publish the files as they are: digest and checksums are taken while they are copied."""
        digest = PassingDigest(shards)
        files = [self._put(version, shard, digest) for shard in shards]
        return WeightsManifest(
            version=version,
            digest=digest_upon(digest.finish(), adapter),
            parent=parent,
            shards=files,
            adapter=adapter,
        )

    def _put(self, version: PolicyRef, file: Path, digest: PassingDigest) -> File:
        checksum, size = blake3(), 0

        def see(piece: memoryview) -> None:
            nonlocal size
            digest.see(file, size, piece)
            checksum.update(piece)
            size += len(piece)

        self._blobs.put_file(f"{folder(version)}/{file.name}", file, see)
        return File(name=file.name, bytes=size, checksum=str(checksum.hexdigest()))

    def _publish_delta(
        self, version: PolicyRef, parent: PolicyRef | None, shards: Sequence[Path]
    ) -> WeightsManifest | None:
        """Publish a delta; None when the version should be a full one."""
        base = self._base_for(version, parent)
        if base is None or self._cache is None:
            return None
        try:
            if not _is_worth(self._glance(base), shards):
                return None
            base_shards = self._open(manifest_path(base.version), base)
        except WeightsError as error:
            logger.warning("version %s is published full: its parent cannot be read (%s)", version, error)
            return None
        with self._cache.scratch() as scratch:
            file = scratch / delta_name(base.version)
            encoded = encode(base_shards, shards, file)
            delta = Delta(base.version, base.digest, _depth(base) + 1, encoded.file, encoded.tensors, FORMAT)
            manifest = WeightsManifest(version=version, digest=encoded.digest, parent=parent, shards=[], delta=delta)
            size = encoded.file.bytes + len(manifest.encode())
            if size > sum(shard.stat().st_size for shard in shards):
                return None
            path = f"{folder(version)}/{file.name}"
            self._blobs.put_file(path, file)
        if not self._blobs.exists(manifest_path(base.version)):  # discarded meanwhile
            self._blobs.delete(path)
            return None
        return manifest

    def _base_for(self, version: PolicyRef, parent: PolicyRef | None) -> WeightsManifest | None:
        """Return the parent's manifest when a delta upon it may be tried."""
        if self._cache is None or parent is None or parent >= version:
            return None
        path = manifest_path(parent)
        base = read_manifest(self._blobs, path) if self._blobs.exists(path) else None
        if base is None or base.adapter or (base.delta and base.delta.format != FORMAT):
            return None
        return base if _depth(base) + 1 < self._anchor_every else None

    def _glance(self, base: WeightsManifest) -> list[Path]:
        """Return a version's shards, unverified if possible.

        That is good enough for an estimate, and most versions of a small float32 model need no more."""
        if base.delta is None and self._blobs.is_local:
            with suppress(FileNotFoundError, ValueError):
                return [self._blobs.local(f"{folder(base.version)}/{file.name}") for file in base.shards]
        return self._open(manifest_path(base.version), base)

    def _keep(self, cache: VersionCache, digest: str, shards: Sequence[Path], adapter: AdapterConfig | None) -> None:
        """Keep published shards: the next delta is made upon them."""
        with cache.scratch() as scratch:
            version = scratch / "version"
            version.mkdir()
            for shard in shards:
                link_or_copy(shard, version / shard.name)
            cache.add(digest, version, adapter)

    # ------------------------------------------------------------------------------------------ open

    def open(self, ref: WeightsRef) -> Opened:
        """Return a version's files, those of the cache while the blobs are out of reach.

        Raises WeightsError naming one that is missing, corrupt or a different one, OSError where nothing has it."""
        try:
            manifest = self._manifest(ref)
        except OSError as error:
            kept = self._cache.find_any(ref.digest) if self._cache else None
            if kept is None:
                raise
            logger.warning("version %s is opened from this host's cache: %s", ref.version, error)
            return Opened(ref.digest, *kept)
        return Opened(manifest.digest, self._open(ref.path, manifest), manifest.adapter)

    def keep(self, ref: WeightsRef, shards: Sequence[Path]) -> None:
        """Have the cache keep a whole version that is at hand, so that it is not fetched.

        Files of other weights are passed over. Raises WeightsError where they are no safetensors."""
        if self._cache is None or self._blobs.is_local or not shards:
            return
        if not self._cache.find(ref.digest) and digest_of_version(shards) == ref.digest:
            self._keep(self._cache, ref.digest, shards, None)

    def _manifest(self, ref: WeightsRef) -> WeightsManifest:
        manifest = read_manifest(self._blobs, ref.path)
        if manifest.digest != ref.digest:
            raise WeightsError(f"{ref.path}: digest {manifest.digest}, version {ref.version} has {ref.digest}")
        return manifest

    def _open(self, path: str, manifest: WeightsManifest, has_turn: bool = False) -> list[Path]:
        if manifest.delta is None and (self._blobs.is_local or self._cache is None):
            return self._open_in_place(path, manifest)
        if self._cache is None:
            raise ConfigError(f"{path}: a delta, and no cache directory was given to rebuild weights in")
        if shards := self._cache.find(manifest.digest, manifest.adapter):
            return shards
        with nullcontext() if has_turn else self._cache.turn(manifest.digest):
            if shards := self._cache.find(manifest.digest, manifest.adapter):  # another process made it meanwhile
                return shards
            make = self._build if manifest.delta else self._fetch
            return make(self._cache, path, manifest)

    def _open_in_place(self, path: str, manifest: WeightsManifest) -> list[Path]:
        shards, seen = self._in_place.get(manifest.digest, ([], ()))
        with suppress(FileNotFoundError):
            if shards and fingerprint(shards) == seen:
                return shards
        shards = [self._file(path, manifest, file, None) for file in manifest.shards]
        seen = fingerprint(shards)
        _check(path, manifest, digest_of_version(shards, manifest.adapter))
        self._in_place[manifest.digest] = (shards, seen)
        return shards

    def _fetch(self, cache: VersionCache, path: str, manifest: WeightsManifest) -> list[Path]:
        with cache.scratch() as scratch:
            version = scratch / "version"
            version.mkdir()
            shards = [self._file(path, manifest, file, version) for file in manifest.shards]
            _check(path, manifest, digest_of_version(shards, manifest.adapter))
            return cache.add(manifest.digest, version, manifest.adapter)

    def _build(self, cache: VersionCache, path: str, manifest: WeightsManifest) -> list[Path]:
        """Build a version from the nearest cached one, all deltas since in one pass."""
        with cache.scratch() as scratch:
            base, links = self._nearest(cache, path, manifest, scratch)
            steps = [self._step(*link, scratch) for link in reversed(links)]
            version = scratch / "version"
            version.mkdir()
            _check(path, manifest, apply(base, steps, version))
            return cache.add(manifest.digest, version)

    def _step(self, path: str, manifest: WeightsManifest, scratch: Path) -> DeltaStep:
        """Fetch a delta. Raises WeightsError also for one that another build wrote in a way of its own."""
        delta = manifest.delta
        assert delta, "what is whole ends the way"
        if delta.format != FORMAT:
            raise WeightsError(
                f"{path}: a delta in format {delta.format}, and this build reads format {FORMAT}. Let the build that "
                f"published version {manifest.version} open it on this host (what is in the cache stays readable), or "
                "roll back to a version that was published whole"
            )
        file = self._file(path, manifest, delta.file, scratch)
        return DeltaStep(file, delta.tensors, f"{folder(manifest.version)}/{delta.file.name}")

    def _nearest(
        self, cache: VersionCache, path: str, manifest: WeightsManifest, scratch: Path
    ) -> tuple[list[Path], list[tuple[str, WeightsManifest]]]:
        """Its shards, and what leads from it to `manifest`, the last step first."""
        links = [(path, manifest)]
        while delta := links[-1][1].delta:
            if base := cache.lend(delta.base_digest, scratch):
                return base, links
            links.append(read_base(self._blobs, delta))
        wanted, (path, manifest) = links[0][1].digest, links.pop()
        shards = self._open(path, manifest, has_turn=manifest.digest == wanted)  # where deltas changed nothing
        return cache.lend(manifest.digest, scratch) or shards, links

    def _file(self, manifest_path: str, manifest: WeightsManifest, file: File, directory: Path | None) -> Path:
        """Return a file of a version, verified: the blob itself, or a copy in `directory` when blobs are remote."""
        if self._peers is None or self._blobs.is_local or directory is None:
            return self._blob(manifest_path, manifest, file, directory)
        target = directory / file.name
        if target.parent != directory or target.exists():
            raise WeightsError(f"{manifest_path}: {file.name!r} is no name of a file, or stands there twice")
        self._peers.obtain(manifest.digest, file, target, lambda: self._blob(manifest_path, manifest, file, directory))
        return target

    def _blob(self, manifest_path: str, manifest: WeightsManifest, file: File, directory: Path | None) -> Path:
        path = f"{folder(manifest.version)}/{file.name}"
        try:
            local = self._blobs.local(path, directory and directory / file.name)
        except FileNotFoundError as error:
            raise WeightsError(f"{path}: missing") from error
        except (ValueError, FileExistsError) as error:  # no name of a file, or one that stands there twice
            raise WeightsError(f"{manifest_path}: {error}") from error
        size = local.stat().st_size
        if size != file.bytes:
            raise WeightsError(f"{path}: {size} bytes instead of {file.bytes}")
        if checksum_of(local) != file.checksum:
            raise WeightsError(f"{path}: corrupt (its checksum is not the published one)")
        return local

    # ------------------------------------------------------------------------------------------ chains

    def chain(self, ref: WeightsRef) -> list[WeightsRef]:
        """Return the versions that a version is built from. Raises WeightsError naming a missing or different link."""
        refs, manifest = [ref], self._manifest(ref)
        while manifest.delta:
            path, manifest = read_base(self._blobs, manifest.delta)
            refs.append(ref_to(path, manifest))
        return refs[::-1]

    def bases(self) -> dict[PolicyRef, PolicyRef | None]:
        """Return all versions that open, each with the one that it is a delta upon."""
        return bases_among(self._blobs.list("weights/"))

    def discard(self, version: PolicyRef) -> None:
        """Discard a version, its manifest first, and delete what is beside it and what no version needs any more."""
        path = manifest_path(version)
        if self._blobs.exists(path):
            self._blobs.put(link_path(version), self._blobs.get(path))
            self._blobs.delete(path)
        for beside in paths_beside(version):
            self._blobs.delete(beside)
        paths = set(self._blobs.list("weights/"))
        if link_path(version) not in paths:  # a publication that was cut off
            paths -= self._delete({path for path in paths if path.startswith(f"{folder(version)}/")})
        while free := _unneeded(paths):
            paths -= self._delete({path for path in paths if path.startswith(f"{folder(free)}/")})

    def _delete(self, paths: set[str]) -> set[str]:
        """Delete files, the link last: it shows that something is left to delete."""
        for path in sorted(paths, key=lambda path: path.endswith("/link.json")):
            self._blobs.delete(path)
        return paths


def _is_worth(base: Sequence[Path], shards: Sequence[Path]) -> bool:
    return layout(base) == layout(shards) and promised_share(base, shards) <= _WORTH


def _depth(manifest: WeightsManifest) -> int:
    return manifest.delta.depth if manifest.delta else 0


def _check(path: str, manifest: WeightsManifest, digest: str) -> None:
    if digest != manifest.digest:
        raise WeightsError(f"{path}: the tensors' digest is {digest}, not {manifest.digest}")


def _unneeded(paths: set[str]) -> PolicyRef | None:
    """Return a discarded version that no delta needs."""
    wanted = needed(paths)
    found = (re.fullmatch(r"weights/([^/]+)/link\.json", path) for path in paths)
    versions = (version_in(match[1]) for match in found if match)
    return next((one for one in versions if one and one not in wanted and manifest_path(one) not in paths), None)
