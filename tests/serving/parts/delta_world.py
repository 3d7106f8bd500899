"""Checkpoints of any dtype, and steps between them as small learning rates make them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from serving.weights.deltas.checkpoint import width_of
from serving.weights.deltas.chunk import Bits

Checkpoint = dict[str, tuple[str, tuple[int, ...], Bits]]  # name to dtype, shape, raw bits


def write(path: Path, tensors: Checkpoint, metadata: Mapping[str, str] | None = None) -> Path:
    """Write a safetensors file without a library that knows its dtypes."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape, bits) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
    raw = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _, _, bits in tensors.values():
            file.write(bits.tobytes())
    return path


def write_sharded(directory: Path, tensors: Checkpoint, shards: int) -> list[Path]:
    """Write the tensors to shards in turn."""
    names = list(tensors)
    return [
        write(directory / f"model-{number}.safetensors", {name: tensors[name] for name in names[number::shards]})
        for number in range(shards)
    ]


def random_weights(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], Bits]:
    values = rng.normal(size=math.prod(shape)) * 0.02
    match dtype:
        case "F64" | "F32" | "F16":
            bits = values.astype(f"f{width_of(dtype)}").view(f"u{width_of(dtype)}")
        case "BF16":
            bits = (values.astype("f4").view("u4") >> 16).astype("u2")
        case _:
            bits = rng.integers(0, 256, len(values) * width_of(dtype)).astype("u1").view(f"u{width_of(dtype)}")
    return dtype, shape, bits


def small_step(rng: np.random.Generator, tensors: Checkpoint, share: float = 0.02) -> Checkpoint:
    """Move some elements up or down by one in their last bit."""
    moved: Checkpoint = {}
    for name, (dtype, shape, bits) in tensors.items():
        steps = (rng.random(len(bits)) < share) * (2 * rng.integers(0, 2, len(bits)) - 1)
        moved[name] = (dtype, shape, bits + steps.astype(bits.dtype))
    return moved
