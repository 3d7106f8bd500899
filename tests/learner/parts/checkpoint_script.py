"""A script that writes a checkpoint for each given bound, in a process that the kernel ends at that size.

A process ends at the byte where one of its files would grow beyond the bound. The script prints how each ended."""

import os
import resource
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from core.events import PolicyVersion
from core.ids import base_ref
from learner.versions.checkpoint import Checkpoints, Contents, Meta

SIZES = (
    1 << 10,
    1 << 13,
    1 << 14,
    1 << 15,
    1 << 17,
)  # about; of the files as they are written, each larger than those before


def write(directory: Path, version: int) -> None:
    policy = PolicyVersion(
        version=base_ref(version),
        policy="p",
        digest="",
        parent=None,
        manifest=None,
        weights="",
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
    )
    lineage = tuple(base_ref(1 << 40) for _ in range(SIZES[4] // 9))
    meta = Meta(policy=policy, lineage=lineage, live=None, refused=(), offsets={}, pending=(), applied={})
    contents = Contents(
        {"w": torch.zeros(SIZES[0] // 4)}, {"s": torch.zeros(SIZES[1] // 4)}, {"m": torch.zeros(SIZES[2] // 4)}
    )
    Checkpoints(directory).write(contents, meta, bytes(SIZES[3]))


def main(directory: Path, version: int, bounds: list[int]) -> None:
    for bound in bounds:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (bound, bound))
            write(directory / str(bound), version)
            os._exit(0)
        sys.stdout.write(f"{bound} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()  # before the next fork, lest its child has this in its buffer as well


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [int(each) for each in sys.argv[3:]])
