"""A delta: for each tensor that changed, in name order, its chunks (`checkpoint.CHUNK` elements each).

Each chunk stands after its size. Which tensors these are, and where each ends, stands in the manifest; a tensor that is
not there did not change. Encoding and applying hold a few chunks at a time, whatever the checkpoint's size; chunks are
worked on by a few threads, which numpy and zstd let run side by side."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice, repeat
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
from blake3 import blake3

from core.errors import WeightsError
from core.model.weights_digest import StoredTensor, tensors_of
from serving.weights.deltas.checkpoint import ByteRange, OpenFiles, make_like, num_stretches, stretches
from serving.weights.deltas.chunk import SIZE_BYTES, Bits, decode_chunk, encode_chunk
from serving.weights.deltas.manifest import ChangedTensor, File

_THREADS = min(4, os.cpu_count() or 1)
_DIGEST_BYTES = 16

Job = TypeVar("Job")
Result = TypeVar("Result")


def _in_order(work: Callable[[Job], Result], jobs: Iterable[Job]) -> Generator[Result, None, None]:
    """`map` by a few threads, few jobs ahead."""
    with ThreadPoolExecutor(_THREADS) as pool:
        running: deque[Future[Result]] = deque()
        for job in jobs:
            running.append(pool.submit(work, job))
            if len(running) > _THREADS:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


# ------------------------------------------------------------------------------------------------ encode


class Encoded(NamedTuple):
    """A delta that was written, and the digest of the checkpoint that it makes (core.model.weights_digest)."""

    file: File
    tensors: dict[str, ChangedTensor]
    digest: str


def encode(parent: Sequence[Path], child: Sequence[Path], target: Path) -> Encoded:
    """Write the delta between two checkpoints of one layout to `target`. Raises WeightsError for a broken file."""
    before, after = tensors_of(parent), tensors_of(child)
    changed: dict[str, ChangedTensor] = {}
    digest, checksum = blake3(), blake3()
    with ExitStack() as stack:
        file = stack.enter_context(target.open("xb"))
        files = stack.enter_context(OpenFiles([*parent, *child]))

        def work(job: tuple[ByteRange, ByteRange]) -> tuple[bytes, Bits]:
            child_N = files.read(job[1])
            return encode_chunk(files.read(job[0]), child_N), child_N

        def write(data: bytes) -> None:
            checksum.update(data)
            file.write(data)

        pairs = (pair for name in after for pair in zip(stretches(before[name]), stretches(after[name]), strict=True))
        chunks = stack.enter_context(closing(_in_order(work, pairs)))
        for name, tensor in after.items():
            digest.update(tensor.head(name))
            if entry := _encode_tensor(islice(chunks, num_stretches(tensor)), digest, write):
                changed[name] = entry
    return Encoded(File(target.name, target.stat().st_size, checksum.hexdigest()), changed, digest.hexdigest())


def _encode_tensor(
    chunks: Iterable[tuple[bytes, Bits]], digest: blake3, write: Callable[[bytes], None]
) -> ChangedTensor | None:
    """Encode a tensor; None when it is the parent's.

    Chunks that did not change are held back until one did: without, the tensor leaves no trace."""
    own, size, waiting, is_changed = blake3(), 0, b"", False
    for data, child_N in chunks:
        digest.update(child_N.view(np.uint8).data)
        own.update(child_N.view(np.uint8).data)
        waiting += len(data).to_bytes(SIZE_BYTES, "little") + data
        is_changed = is_changed or bool(data)
        if is_changed:
            write(waiting)
            size, waiting = size + len(waiting), b""
    return ChangedTensor(size, own.hexdigest(length=_DIGEST_BYTES)) if is_changed else None


# ------------------------------------------------------------------------------------------------ apply


class DeltaStep(NamedTuple):
    """A delta's file, the tensors that it changes, and what errors call it."""

    path: Path
    tensors: Mapping[str, ChangedTensor]
    name: str


class _Job(NamedTuple):
    name: str
    stretch: ByteRange
    chunks: list[bytes]  # one of each delta


def apply(base: Sequence[Path], steps: Sequence[DeltaStep], directory: Path) -> str:
    """Apply deltas in order to `base`, write the shards into `directory`, and return their digest.

    The digest is that of core.model.weights_digest. Raises WeightsError naming file and tensor for what does not fit;
    files written until then are useless."""
    tensors, made = tensors_of(base), make_like(base, directory)
    places, digest, expected = dict(zip(base, made, strict=True)), blake3(), steps[-1].tensors
    with ExitStack() as stack:
        sources = stack.enter_context(OpenFiles(base))
        targets = stack.enter_context(OpenFiles(made, os.O_WRONLY))
        deltas = [_DeltaReader(step, stack.enter_context(step.path.open("rb")), tensors) for step in steps]

        def work(job: _Job) -> Bits:
            bits_N = sources.read(job.stretch)
            for delta, data in zip(deltas, job.chunks, strict=True):
                bits_N = delta.decode(job.name, data, bits_N)
            return bits_N

        jobs = (job for name, tensor in tensors.items() for job in _jobs(name, tensor, deltas))
        chunks = stack.enter_context(closing(_in_order(work, jobs)))
        for name, tensor in tensors.items():
            digest.update(tensor.head(name))
            own = blake3() if name in expected else None
            for stretch in stretches(tensor):
                raw = next(chunks).view(np.uint8).data
                targets.write(places[stretch.path], stretch.start, raw)
                digest.update(raw)
                if own:
                    own.update(raw)
            if own and own.hexdigest(length=_DIGEST_BYTES) != expected[name].digest:
                raise WeightsError(f"{steps[-1].name}: tensor {name} is not what was published")
    return str(digest.hexdigest())


def _jobs(name: str, tensor: StoredTensor, deltas: Sequence["_DeltaReader"]) -> Iterator[_Job]:
    streams = [delta.chunks(name, num_stretches(tensor)) for delta in deltas]
    for stretch, *chunks in zip(stretches(tensor), *streams, strict=True):
        yield _Job(name, stretch, chunks)


class _DeltaReader:
    """A delta, read tensor by tensor. Its bytes were verified: what does not fit is no accident of disk or network."""

    def __init__(self, step: DeltaStep, file: BinaryIO, base: Mapping[str, StoredTensor]) -> None:
        """Take an open delta. Raises WeightsError when a tensor is none of the base's."""
        self._name, self._tensors, self._file = step.name, step.tensors, file
        if unknown := self._tensors.keys() - base.keys():
            raise WeightsError(f"{step.name}: tensor {min(unknown)} is none of its base's")

    def chunks(self, name: str, count: int) -> Iterator[bytes]:
        """Yield a tensor's chunks, b"" for unchanged ones."""
        entry = self._tensors.get(name)
        if entry is None:
            yield from repeat(b"", count)
            return
        left = entry.bytes
        for _ in range(count):
            size = int.from_bytes(self._file.read(SIZE_BYTES), "little")
            left -= SIZE_BYTES + size
            if left < 0:
                raise WeightsError(f"{self._name}: tensor {name} is cut off")
            yield self._file.read(size)
        if left:
            raise WeightsError(f"{self._name}: tensor {name} has {left} bytes too many")

    def decode(self, name: str, data: bytes, bits_N: Bits) -> Bits:
        try:
            return decode_chunk(data, bits_N)
        except ValueError as error:
            raise WeightsError(f"{self._name}: tensor {name} cannot be decoded ({error})") from error
