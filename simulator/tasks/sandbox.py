"""A sandbox that runs tests for real: in a child process with resource limits and no network (see sandbox_worker).

What a test should give stays on this side; the child is told the expressions alone."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class ForkServer:
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
        request = json.dumps({"code": code, "expressions": [expression for expression, _ in tests]})
        async with self._lock:
            answer = await self._ask(request)
        told: dict[str, Any] = json.loads(answer) if answer else {"values": [], "error": "killed"}
        passed = sum(value == expected for value, (_, expected) in zip(told["values"], tests, strict=False))
        return TestResult(passed, len(tests), told["error"])

    async def _ask(self, request: str) -> bytes:
        """Return the worker's answer, nothing where the worker itself came to an end."""
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(request.encode() + b"\n")
            await process.stdin.drain()
            if answer := await process.stdout.readline():
                return answer
        await process.wait()
        return b""

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
