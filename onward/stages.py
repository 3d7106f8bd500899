"""Stages as processes of their own."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from onward.wiring import Foundation, Stage, build_learner, build_releases, open_foundation

_STEP_S = 0.1


def run_learner(directory: Path) -> None:
    """Until SIGTERM, or until the service that started it is gone."""
    parent = os.getppid()
    foundation = open_foundation(directory)
    ready = foundation.layout.learner_ready
    learner = build_learner(foundation)
    ready.write_text(str(os.getpid()))
    try:
        _run(foundation, learner, parent)
    finally:
        ready.unlink(missing_ok=True)


def run_release(directory: Path, overrides: Mapping[str, str]) -> None:
    """The release controller, until SIGTERM."""
    foundation = open_foundation(directory, overrides)
    _run(foundation, build_releases(foundation, foundation.log, None))


def _run(
    foundation: Foundation,
    stage: Stage,
    parent: int | None = None,
    after_step: Callable[[], None] | None = None,
) -> None:
    """Step until told to stop, or until `parent` is no longer ours."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        while not stopping.is_set() and parent in (None, os.getppid()):
            stage.step(_STEP_S)
            if after_step is not None:
                after_step()
    finally:
        stage.close()
        foundation.close()
