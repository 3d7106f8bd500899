"""The task that sends a queue."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass

import httpx

from onward_client.delivery import Later, Verdict, verdict_on
from onward_client.queue import Queue
from onward_client.requests import Queued
from onward_client.sender import JSON
from onward_client.sending import OnRefused, Sending, logger


class AsyncSender:
    """A task that sends what is queued, in order, until it is closed. The disk is read and written on threads."""

    def __init__(self, http: httpx.AsyncClient, queue: Queue, on_refused: OnRefused | None) -> None:
        self.sending = Sending(queue, on_refused)
        self._http = http
        self._queue = queue
        self._wake, self._hurry = asyncio.Event(), asyncio.Event()
        self._is_stopping = False
        self._task = asyncio.create_task(self._work(), name="onward-feedback")

    def wake(self) -> None:
        """Send now: something was queued."""
        self._wake.set()

    async def flush(self, timeout_s: float) -> int:
        """Wait until nothing is queued, and return how many requests are left after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        self._hasten()
        while (left := await asyncio.to_thread(len, self._queue)) and loop.time() < deadline_s:  # noqa: ASYNC110
            # another process that shares the file may send the rest
            await asyncio.sleep(0.02)
        return left

    async def close(self, timeout_s: float) -> int:
        """Flush, then end the task; return how many requests are left in the queue."""
        left = await self.flush(timeout_s)
        self._is_stopping = True
        self._hasten()
        await self._task
        return left

    def _hasten(self) -> None:
        """End a pause, if there is one: somebody waits."""
        self._hurry.set()
        self._wake.set()

    async def _work(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            try:
                pause_s = await self._round()
            except Exception:  # noqa: BLE001 - the user's `on_refused`, or the disk: the task must go on
                logger.exception("sending feedback failed; it stays queued")
                pause_s = 1.0
            if pause_s is None:
                await self._wake.wait()
            else:  # what is queued meanwhile does not make us ask a service that is down more often
                await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        try:
            await asyncio.wait_for(self._hurry.wait(), pause_s)
        except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
            return
        self.sending.pause(was_cut_short=True)
        self._hurry.clear()

    async def _round(self) -> float | None:
        """Send what is queued; return how long to wait, or None if nothing is left."""
        steps = self.sending.round()
        step = await asyncio.to_thread(_next, steps, None)
        while isinstance(step, Queued):
            if self._is_stopping:
                return 0.0
            step = await asyncio.to_thread(_next, steps, await self._send(step))
        return step.pause_s

    async def _send(self, request: Queued) -> Verdict:
        try:
            answer = await self._http.request(request.method, request.path, content=request.body, headers=JSON)
        except httpx.TransportError as error:
            return Later(f"the service does not answer: {error or type(error).__name__}")
        return verdict_on(answer.status_code, answer.headers, answer.content)


@dataclass(frozen=True)
class _Over:
    pause_s: float | None


def _next(steps: Generator[Queued, Verdict, float | None], verdict: Verdict | None) -> Queued | _Over:
    """Take the next step of a round: on a thread, where the disk may be waited for."""
    try:
        return next(steps) if verdict is None else steps.send(verdict)
    except StopIteration as over:
        return _Over(over.value)
