"""Writes of checkpoints and journal entries, and processes that the kernel ends in the midst of one."""

import os
import resource
import signal
from datetime import UTC, datetime
from pathlib import Path

import torch

from core.events import PolicyVersion
from core.ids import base_ref
from learner.model.ranks import ALONE
from learner.model.sharded_files import Saving
from learner.versions.checkpoint import Checkpoints, Meta
from learner.versions.journal import Entry, Journal
from learner.versions.manifest import Manifest

_PATIENCE_S = 120  # of a copy that waits for what only the process itself has, threads above all
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


def cut_off(what: str, directory: Path, version: int, bound: int) -> int:
    """Write until a file would grow beyond so many bytes, and return how the process ended that wrote.

    It is a copy of this one, which has imported all that it needs, and has written such files before."""
    pid = os.fork()
    if pid == 0:
        try:
            for number in (signal.SIGXFSZ, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            signal.alarm(_PATIENCE_S)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (bound, bound))
            WRITERS[what](directory, version)
        finally:
            os._exit(0)  # it is no second run of the tests, whatever happens
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
