"""Peak memory of encoding or applying one delta, in a process that does nothing else.

    python -m bench delta_peak encode PARENT CHILD TARGET
    python -m bench delta_peak apply BASE DELTA DIRECTORY

Which tensors DELTA changes stands beside it, in a JSON file of its name. It prints the process's peak and its memory
before the work, in bytes (Linux: /proc/self/status)."""

import sys
from pathlib import Path

import msgspec

from serving.weights.deltas.delta import DeltaStep, apply, encode
from serving.weights.deltas.manifest import ChangedTensor


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def main(job: str, first: Path, second: Path, target: Path) -> None:
    before = memory("VmRSS")
    if job == "encode":
        encode([first], [second], target)
    else:
        target.mkdir()
        tensors = msgspec.json.decode(second.with_suffix(".json").read_bytes(), type=dict[str, ChangedTensor])
        apply([first], [DeltaStep(second, tensors, "delta")], target)
    print(memory("VmHWM"), before)


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
