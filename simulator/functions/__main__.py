"""The command line of users who want small functions from a service: `python -m simulator.functions --url URL`."""

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from core.provenance import Origin, made_by
from simulator.functions.subject import Functions
from simulator.lessons.lesson import LessonOptions
from simulator.lessons.report import succeeded, summary
from simulator.lessons.run import run_lesson
from simulator.tasks.sandbox import ForkServer


async def teach(plan: LessonOptions, output: Path, made: Origin) -> dict[str, Any]:
    sandbox = ForkServer()
    try:
        return await run_lesson(plan, Functions(sandbox), os.environ.get("SIMULATOR_KEY"), output, made)
    finally:
        await sandbox.close()


def main() -> None:
    os.umask(0o077)  # what users said and thought of it is nobody else's
    parser = argparse.ArgumentParser(
        prog="simulator.functions",
        description="Simulated users who ask a running service for small Python functions and take those that pass "
        "their tests. SIMULATOR_KEY: where one is needed, an API key with the scopes chat, feedback and read.",
    )
    parser.add_argument("--url", required=True, action="append", help="the service's address; repeat it per replica")
    parser.add_argument("--model", default="onward-tiny", help="the model's name")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long users teach")
    parser.add_argument("--examined", type=int, default=96, help="answers before, and again after")
    parser.add_argument("--users", type=int, default=8, help="users who ask at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("demo"), help="where the report goes")
    parser.add_argument("--command", help="the command that this is part of, for the report")
    asked = parser.parse_args()
    for name, least in (("seconds", 0), ("examined", 1), ("users", 1)):
        if getattr(asked, name) < least:
            parser.error(f"--{name}: {getattr(asked, name):g} is less than {least}")
    plan = LessonOptions(tuple(asked.url), asked.seconds, asked.seed, asked.examined, asked.users, asked.model)
    made = made_by("python -m simulator.functions")
    made |= {"command": asked.command} if asked.command else {}
    report = asyncio.run(teach(plan, asked.output, made))
    print(summary(report, asked.output), flush=True)
    sys.exit(0 if succeeded(report) else 1)


if __name__ == "__main__":
    main()
