"""A view of a lesson as it happens: a line every few seconds."""

import asyncio
import contextlib

from simulator.lessons.lesson import Lesson
from simulator.lessons.report import share
from simulator.service import UNREACHABLE, ServiceView

_EVERY_S = 10.0
_FOLLOWED_S = 0.5
_LATEST = 48  # taught answers whose share is shown
_PHASES = {"before": "first examination", "taught": "teaching", "after": "last examination"}


async def watch(lesson: Lesson, service: ServiceView) -> None:
    """Print the state of the lesson until cancelled."""
    while True:
        metrics: dict[str, float] = {}
        with contextlib.suppress(*UNREACHABLE):  # the view shows; the lesson counts failures
            metrics = await service.metrics()
        print(line(lesson, metrics), flush=True)
        await asyncio.sleep(_EVERY_S)


async def follow(lesson: Lesson, service: ServiceView) -> None:
    """Tell the lesson how many versions there have been since its beginning, until cancelled."""
    first: float | None = None
    while True:
        with contextlib.suppress(*UNREACHABLE, KeyError):  # it says nothing of a version before it has one
            version = (await service.metrics())["onward_policy_version"]
            first = version if first is None else first
            lesson.versions = int(version - first)
        await asyncio.sleep(_FOLLOWED_S)


def line(lesson: Lesson, metrics: dict[str, float]) -> str:
    record, phase = lesson.record, lesson.phase
    answers = record.of(phase)
    right = share(answers[-_LATEST:] if phase == "taught" else answers)
    served = metrics.get('onward_feedback_to_served_quantile_seconds{quantile="0.5"}')
    figures = {
        "time": f"{lesson.elapsed_s:.0f} s",
        "now": _PHASES[phase],
        "answers": str(len(answers)),
        "right": "-" if right is None else f"{right:.2f}",
        "version": f"{metrics.get('onward_policy_version', 1):.0f}",
        "feedback to served": "-" if served is None else f"p50 {served:.0f} s",
        "failed": str(len(record.failures)),
    }
    return " | ".join(f"{name} {value}" for name, value in figures.items())
