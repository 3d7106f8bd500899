"""The record that a model's plain modules were compared with transformers' own, so that later starts need not again.

The comparison has one outcome for one model, one build and one machine: the record is a digest of these, and of
whatever else the numbers depend on. Where any of it differs, or there is no record, the comparison is made."""

import os
from importlib.metadata import version
from pathlib import Path

import torch
from blake3 import blake3

from core.model.files import weight_files
from serving.engines.local.native import library

_CODE = Path(__file__).resolve().parents[1]
_PACKAGES = ("torch", "transformers", "safetensors")


def digest_of_check(directory: Path, device: str, dtype: str, context_length: int) -> str:
    """Return the digest of all that the comparison depends on: model, code, packages, device, dtype, context."""
    hasher = blake3()
    settings = (
        device,
        _processor(device),
        dtype,
        str(context_length),
        f"in one call: {library.is_loaded()}",
        *(f"{name} {version(name)}" for name in _PACKAGES),
    )
    hasher.update("\0".join(settings).encode())
    files = [
        directory / "config.json",
        *weight_files(directory),
        *sorted([*_CODE.rglob("*.py"), *_CODE.rglob("*.cpp")]),
    ]
    for path in files:
        hasher.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
        hasher.update_mmap(path)
    return str(hasher.hexdigest())


def _processor(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else torch.backends.cpu.get_cpu_capability()


def is_recorded(record: Path | None, digest: str) -> bool:
    """Return whether the record says that this very comparison was made and found the numbers the same."""
    return record is not None and record.exists() and record.read_text(encoding="utf-8", errors="replace") == digest


def write_record(record: Path | None, digest: str) -> None:
    """Write the record, whole or not at all, where there is a place for it."""
    if record is None:
        return
    whole = record.with_suffix(".tmp")
    whole.write_text(digest, encoding="utf-8")
    os.replace(whole, record)
