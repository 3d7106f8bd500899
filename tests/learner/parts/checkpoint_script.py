"""A script that writes checkpoints and journal entries, each in a process that the kernel ends at the given bound.

    checkpoint_script.py DIRECTORY VERSION checkpoint-BOUND... entry-BOUND...

A process ends at the byte where one of its files would grow beyond the bound. The script prints how each ended."""

import os
import resource
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from core.events import PolicyVersion
from core.ids import base_ref
from learner.model.ranks import ALONE
from learner.model.sharded_files import Saving
from learner.versions.checkpoint import Checkpoints, Meta
from learner.versions.journal import Entry, Journal
from learner.versions.manifest import Manifest

SIZES = (1 << 10, 1 << 13, 1 << 15, 1 << 17)
"""About; of a checkpoint's files as they are written, each larger than those before."""


def write_checkpoint(directory: Path, version: int) -> None:
    checkpoints = Checkpoints(directory)
    ref, long_name = base_ref(version), "w" * SIZES[1]
    saving = Saving({long_name: torch.zeros(SIZES[0] // 4)}, checkpoints.room_for(ref), ALONE)
    lineage = tuple(base_ref(1 << 40) for _ in range(SIZES[3] // 9))
    checkpoints.keep(Meta(version=ref, lineage=lineage, applied={}), bytes(SIZES[2]), saving.digests())


def write_entry(directory: Path, version: int) -> None:
    ref, now = base_ref(version), datetime(2026, 3, 1, tzinfo=UTC)
    policy = PolicyVersion(version=ref, policy="p", digest="", parent=None, manifest=None, weights="", created_at=now)
    made = Manifest(version=ref, parent=base_ref(1), seed=0, settings="{}", turns=(), rewards=(), ages_s=(), applied={})
    entry = Entry(policy=policy, manifest=made, lineage=(), live=None, refused=(), offsets={}, pending=())
    Journal(directory).write(entry)


WRITERS = {"checkpoint": write_checkpoint, "entry": write_entry}


def main(directory: Path, version: int, names: list[str]) -> None:
    with TemporaryDirectory() as other:  # the first write imports what the others would each import anew
        for write in WRITERS.values():
            write(Path(other), version)
    for name in names:
        what, _, bound = name.partition("-")
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(bound), int(bound)))
            WRITERS[what](directory / name, version)
            os._exit(0)
        sys.stdout.write(f"{name} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()  # before the next fork, lest its child has this in its buffer as well


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
