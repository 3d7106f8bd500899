"""One lesson against a running service, from the first request to the report."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp

from core.provenance import Origin
from simulator.lessons.lesson import Lesson, LessonOptions
from simulator.lessons.report import make_report, write
from simulator.lessons.subject import Subject
from simulator.lessons.view import watch
from simulator.service import ServiceView


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
