"""A delta: a safetensors file with one tensor of encoded bytes (U8) for each tensor that changed.

Such a tensor is its chunks in order (`checkpoint.CHUNK` elements each), each with its size before it. A tensor that is
not there did not change. Encoding and applying hold a few chunks at a time, whatever the checkpoint's size; chunks are
worked on by a few threads, which numpy and zstd let run side by side.
"""

import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice, repeat
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from blake3 import blake3

from core.errors import WeightsError
from core.model.weights_digest import StoredTensor, tensors_of
from serving.weights.deltas.checkpoint import ByteRange, Files, make_like, num_stretches, stretches
from serving.weights.deltas.chunk import ENCODINGS, decode_chunk, encode_chunk
from serving.weights.deltas.dtypes import Bits, Kind
from serving.weights.deltas.manifest import ChangedTensor
from serving.weights.deltas.stream import number

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


def encode(parent: Sequence[Path], child: Sequence[Path], target: Path) -> dict[str, ChangedTensor]:
    """Write the delta between two checkpoints of one layout to `target`. Raises WeightsError for a broken file."""
    before, after = tensors_of(parent), tensors_of(child)
    payload = target.with_name(target.name + ".payload")
    changed: dict[str, ChangedTensor] = {}
    with ExitStack() as stack:
        file = stack.enter_context(payload.open("xb"))
        files = stack.enter_context(Files([*parent, *child]))

        def work(job: tuple[ByteRange, ByteRange]) -> tuple[bytes, Bits]:
            child_N = files.read(job[1])
            return encode_chunk(files.read(job[0]), child_N, job[0].kind), child_N

        pairs = (pair for name in after for pair in zip(stretches(before[name]), stretches(after[name]), strict=True))
        chunks = stack.enter_context(closing(_in_order(work, pairs)))
        for name, tensor in after.items():
            if entry := _gather(islice(chunks, num_stretches(tensor)), file.write):
                changed[name] = entry
    _write(target, changed, payload)
    payload.unlink()
    return changed


def _gather(chunks: Iterable[tuple[bytes, Bits]], write: Callable[[bytes], object]) -> ChangedTensor | None:
    """One tensor. What did not change is held back until something did: without, the tensor leaves no trace."""
    hasher, encodings, size, waiting = blake3(), set(), 0, b""
    for data, child_N in chunks:
        hasher.update(child_N.view(np.uint8).data)
        waiting += number(len(data))
        if data:
            write(waiting + data)
            encodings.add(ENCODINGS[data[0]])
            size, waiting = size + len(waiting) + len(data), b""
    if not encodings:
        return None
    write(waiting)
    return ChangedTensor("+".join(sorted(encodings)), size + len(waiting), hasher.hexdigest(length=_DIGEST_BYTES))


def _write(target: Path, changed: dict[str, ChangedTensor], payload: Path) -> None:
    header, at = {}, 0
    for name, entry in changed.items():
        header[name] = {"dtype": "U8", "shape": [entry.bytes], "data_offsets": [at, at + entry.bytes]}
        at += entry.bytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with target.open("xb") as file, payload.open("rb") as content:
        file.write(len(raw).to_bytes(8, "little") + raw)
        shutil.copyfileobj(content, file)


# ------------------------------------------------------------------------------------------------ apply


class _Job(NamedTuple):
    name: str
    stretch: ByteRange
    steps: list[bytes]  # what each delta made of it


def apply(base: Sequence[Path], deltas: Sequence[Path], directory: Path, expected: Mapping[str, ChangedTensor]) -> str:
    """Apply `deltas` in order to `base`, write the shards into `directory`, and return their digest.

    The digest is that of core.model.weights_digest. `expected`: the tensors that the last delta changed. Raises
    WeightsError naming file and tensor for what does not fit; files written until then are useless."""
    tensors, made = tensors_of(base), make_like(base, directory)
    places, hasher = dict(zip(base, made, strict=True)), blake3()
    with ExitStack() as stack:
        sources = stack.enter_context(Files(base))
        targets = stack.enter_context(Files(made, os.O_WRONLY))
        opened = [stack.enter_context(DeltaFile(path, tensors)) for path in deltas]

        def work(job: _Job) -> Bits:
            bits_N = sources.read(job.stretch)
            for delta, data in zip(opened, job.steps, strict=True):
                bits_N = delta.step(job.name, data, bits_N, job.stretch.kind)
            return bits_N

        jobs = (job for name, tensor in tensors.items() for job in _jobs(name, tensor, opened))
        chunks = stack.enter_context(closing(_in_order(work, jobs)))
        for name, tensor in tensors.items():
            hasher.update(tensor.head(name))
            own = blake3()
            for stretch in stretches(tensor):
                raw = next(chunks).view(np.uint8).data
                targets.write(places[stretch.path], stretch.start, raw)
                hasher.update(raw)
                own.update(raw)
            if name in expected and own.hexdigest(length=_DIGEST_BYTES) != expected[name].digest:
                raise WeightsError(f"{deltas[-1]}: tensor {name} is not what was published")
    return str(hasher.hexdigest())


def _jobs(name: str, tensor: StoredTensor, deltas: Sequence["DeltaFile"]) -> Iterator[_Job]:
    streams = [delta.chunks(name, num_stretches(tensor)) for delta in deltas]
    for stretch, *steps in zip(stretches(tensor), *streams, strict=True):
        yield _Job(name, stretch, steps)


class DeltaFile:
    """An open delta. Its bytes were verified: what does not fit is no accident of disk or network."""

    def __init__(self, path: Path, base: Mapping[str, StoredTensor]) -> None:
        """Open a delta. Raises WeightsError when a tensor is none of the base's."""
        self._path = path
        self._tensors = tensors_of([path])
        if unknown := self._tensors.keys() - base.keys():
            raise WeightsError(f"{path}: tensor {min(unknown)} is none of its base's")
        self._file = path.open("rb")

    def chunks(self, name: str, count: int) -> Iterator[bytes]:
        """Yield a tensor's chunks, b"" for unchanged ones. Read tensor by tensor."""
        tensor = self._tensors.get(name)
        if tensor is None:
            yield from repeat(b"", count)
            return
        self._file.seek(tensor.start)
        for _ in range(count):
            size = self._number()
            if size > tensor.end - self._file.tell():
                raise WeightsError(f"{self._path}: tensor {name} is cut off")
            yield self._file.read(size)
        if self._file.tell() != tensor.end:
            raise WeightsError(f"{self._path}: tensor {name} has {tensor.end - self._file.tell()} bytes too many")

    def _number(self) -> int:
        value = shift = 0
        while (byte := ord(self._file.read(1) or b"\0")) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def step(self, name: str, data: bytes, bits_N: Bits, kind: Kind) -> Bits:
        try:
            return decode_chunk(data, bits_N, kind)
        except (ValueError, IndexError) as error:
            raise WeightsError(f"{self._path}: tensor {name} cannot be decoded ({error})") from error

    def __enter__(self) -> "DeltaFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
