"""A checkpoint's files, read and written stretch by stretch."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from core.errors import WeightsError
from core.model.weights_digest import StoredTensor, read_header
from serving.weights.deltas.chunk import Bits

CHUNK = 1 << 20  # elements
_WIDTHS = {"F64": 8, "I64": 8, "U64": 8} | dict.fromkeys(("F32", "I32", "U32", "C64"), 4)
_WIDTHS |= dict.fromkeys(("F16", "BF16", "I16", "U16"), 2)


class ByteRange(NamedTuple):
    """A range of at most CHUNK elements of one tensor."""

    path: Path
    start: int  # byte in the file
    size: int  # bytes
    width: int  # bytes of an element


def width_of(dtype: str) -> int:
    """Return how many bytes an element is taken as; one for what is unknown, and for elements that share a byte."""
    return _WIDTHS.get(dtype, 1)


def stretches(tensor: StoredTensor) -> Iterator[ByteRange]:
    """Return the ranges of a tensor. A dtype whose size does not divide the bytes is treated as bytes."""
    width = width_of(tensor.dtype)
    width = 1 if (tensor.end - tensor.start) % width else width
    step = CHUNK * width
    for start in range(tensor.start, tensor.end, step):
        yield ByteRange(tensor.path, start, min(step, tensor.end - start), width)


def num_stretches(tensor: StoredTensor) -> int:
    return sum(1 for _ in stretches(tensor))


class OpenFiles:
    """Files kept open, so that what happens to their names meanwhile does not matter. Thread-safe."""

    def __init__(self, paths: Sequence[Path], flags: int = os.O_RDONLY) -> None:
        """Open the files. Raises WeightsError naming the file that cannot be opened."""
        self._descriptors: dict[Path, int] = {}
        with ExitStack() as undo:
            undo.callback(self.close)
            for path in paths:
                try:
                    self._descriptors[path] = os.open(path, flags)
                except OSError as error:
                    raise WeightsError(f"{path}: cannot be read ({error.strerror})") from error
            undo.pop_all()

    def read(self, stretch: ByteRange) -> Bits:
        """Read a range. Raises WeightsError for a truncated file."""
        data = os.pread(self._descriptors[stretch.path], stretch.size, stretch.start)
        if len(data) < stretch.size:
            raise WeightsError(f"{stretch.path}: truncated, {stretch.size - len(data)} bytes are missing")
        return np.frombuffer(data, f"<u{stretch.width}")

    def write(self, path: Path, start: int, raw: memoryview) -> None:
        while raw:
            written = os.pwrite(self._descriptors[path], raw, start)
            raw, start = raw[written:], start + written

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}

    def __enter__(self) -> "OpenFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def layout(shards: Sequence[Path]) -> list[tuple[str, bytes, int]]:
    """Name, header and size of each: with equal layouts, two checkpoints differ in nothing but tensors' bytes."""
    found = []
    for path in shards:
        with path.open("rb") as file:
            _, base = read_header(file, path)
            file.seek(0)
            found.append((path.name, file.read(base), path.stat().st_size))
    return found


def make_like(shards: Sequence[Path], directory: Path) -> list[Path]:
    """Make new shards of the same layout; their tensors are still to be written."""
    made = []
    for name, header, size in layout(shards):
        with (directory / name).open("xb") as file:
            file.write(header)
            file.truncate(size)
        made.append(directory / name)
    return made
