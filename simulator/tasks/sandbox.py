"""A sandbox that runs tests for real: in a child process with resource limits and no network (see sandbox_worker)."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_WORKER = Path(__file__).with_name("sandbox_worker.py")


@dataclass(frozen=True)
class TestResult:
    """The result of running tests.

    `error` names what the code raised, or is `killed` when the code went over a limit or ended its own process."""

    __test__ = False  # pytest: not a test class

    passed: int
    total: int
    error: str | None

    @property
    def all_passed(self) -> bool:
        return self.error is None and self.passed == self.total


class Sandbox:
    """One fork server; results are cached by code and tests, since the same code gives the same result."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._results: dict[tuple[str, tuple[tuple[str, str], ...]], TestResult] = {}

    async def run(self, code: str, tests: Sequence[tuple[str, str]]) -> TestResult:
        key = (code, tuple(tests))
        if key not in self._results:
            self._results[key] = await self._execute(code, tests)
        return self._results[key]

    async def _execute(self, code: str, tests: Sequence[tuple[str, str]]) -> TestResult:
        request = json.dumps({"code": code, "tests": [list(test) for test in tests]})
        async with self._lock:
            process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(request.encode() + b"\n")
            await process.stdin.drain()
            answer = await process.stdout.readline()
        return TestResult(**json.loads(answer))

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_WORKER),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={},
            )
        return self._process

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
