"""One lesson against a running service, from the first request to the report."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp

from core.provenance import Origin
from simulator.lessons.lesson import Lesson, LessonOptions
from simulator.lessons.report import make_report, share, write
from simulator.lessons.subject import Subject
from simulator.service import UNREACHABLE, ServiceView

_EVERY_S = 10.0
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


async def run_lesson(
    plan: LessonOptions, subject: Subject, key: str | None, output: Path, made: Origin
) -> dict[str, Any]:
    """Run the lesson, write its report, and return it. `made`: by which command."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
        lesson, service = Lesson(plan, subject, http), ServiceView(plan.base_urls[0], http)
        watching = asyncio.create_task(watch(lesson, service))
        try:
            await lesson.run()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        report = await make_report(lesson, service, made)
    write(report, output)
    return report
