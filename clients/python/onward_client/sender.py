"""The thread that sends a queue."""

import threading
import time

import httpx

from onward_client.delivery import Later, Verdict, verdict_on
from onward_client.queue import Queue
from onward_client.requests import Queued
from onward_client.sending import OnRefused, Sending, logger


class Sender:
    """A thread that sends what is queued, in order, until it is closed."""

    def __init__(self, http: httpx.Client, queue: Queue, on_refused: OnRefused | None) -> None:
        self.sending = Sending(queue, on_refused)
        self._http = http
        self._queue = queue
        self._wake, self._hurry, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._empty = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="onward-feedback", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Send now: something was queued."""
        self._wake.set()

    def flush(self, timeout_s: float) -> int:
        """Wait until nothing is queued, and return how many requests are left after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        self._hasten()
        with self._empty:
            while (left := len(self._queue)) and (rest_s := deadline_s - time.monotonic()) > 0:
                self._empty.wait(min(rest_s, 0.5))  # another process that shares the file may have sent the rest
        return left

    def close(self, timeout_s: float) -> int:
        """Flush, then end the thread; return how many requests are left in the queue."""
        left = self.flush(timeout_s)
        self._stop.set()
        self._hasten()
        self._thread.join()
        return left

    def _hasten(self) -> None:
        """End a pause, if there is one: somebody waits."""
        self._hurry.set()
        self._wake.set()

    def _work(self) -> None:
        pause_s: float | None = 0.0
        while not self._stop.is_set():
            self._wake.clear()
            try:
                pause_s = self._round()
            except Exception:  # noqa: BLE001 - the user's `on_refused`, or the disk: the thread must go on
                logger.exception("sending feedback failed; it stays queued")
                pause_s = 1.0
            with self._empty:
                self._empty.notify_all()
            if pause_s is None:
                self._wake.wait()
            else:  # what is queued meanwhile does not make us ask a service that is down more often
                self.sending.pause(self._hurry.wait(pause_s))
                self._hurry.clear()

    def _round(self) -> float | None:
        """Send what is queued; return how long to wait, or None if nothing is left."""
        steps = self.sending.round()
        try:
            request = next(steps)
            while not self._stop.is_set():
                request = steps.send(self._send(request))
        except StopIteration as over:
            pause_s: float | None = over.value
            return pause_s
        return 0.0

    def _send(self, request: Queued) -> Verdict:
        try:
            answer = self._http.request(request.method, request.path, content=request.body, headers=JSON)
        except httpx.TransportError as error:
            return Later(f"the service does not answer: {error or type(error).__name__}")
        return verdict_on(answer.status_code, answer.headers, answer.content)


JSON = {"content-type": "application/json"}
