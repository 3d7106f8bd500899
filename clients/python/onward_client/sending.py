"""One way through the queue, without saying how a request travels: that is what the thread and the task share."""

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass

from onward_client.delivery import Acknowledged, Later, Rejected, Verdict, wait_s
from onward_client.queue import Queue, Refusal
from onward_client.requests import Queued

logger = logging.getLogger("onward_client")
OnRefused = Callable[[Refusal], None]


@dataclass
class Sending:
    """The state of sending a queue: how often it failed in a row, and why the last time."""

    queue: Queue
    on_refused: OnRefused | None = None
    problem: str | None = None
    _failures: int = 0

    def round(self) -> Generator[Queued, Verdict, float | None]:
        """Yield each queued request in turn and be sent what became of it.

        One that waits keeps back those that withdraw or supersede it: if they came first they would be refused for
        good, as being about unknown feedback, and what was withdrawn would count.

        Return how many seconds to wait before the next round, or None when nothing is left."""
        place, problem, asked_s = 0, None, None
        waiting: set[str] = set()
        while problem is None or not problem.of_all:
            found = self.queue.after(place)
            if found is None:
                break
            place, request = found
            if waiting and not waiting.isdisjoint(ids := request.ids()):
                waiting |= ids
                continue
            verdict = yield request
            match verdict:
                case Acknowledged():
                    self.queue.done(request.request_id)
                case Rejected():
                    self._refuse(Refusal(request, verdict.status, verdict.why))
                case Later():
                    problem, asked_s = verdict, verdict.wait_s
                    waiting |= request.ids()
        return self._settle(problem, asked_s)

    def _refuse(self, refusal: Refusal) -> None:
        self.queue.refuse(refusal)
        sent = refusal.request
        logger.error("the service refused %s %s (%d): %s", sent.method, sent.request_id, refusal.status, refusal.why)
        if self.on_refused is not None:
            self.on_refused(refusal)

    def pause(self, was_cut_short: bool) -> None:
        """Note a pause. After one that somebody cut short, the next is a short one."""
        if was_cut_short:
            self._failures = 0

    def _settle(self, problem: Later | None, asked_s: float | None) -> float | None:
        if problem is None:
            self.problem, self._failures = None, 0
            return None
        if self.problem != problem.why:
            logger.warning("feedback waits in the queue: %s", problem.why)
        self.problem = problem.why
        self._failures += 1
        return max(wait_s(self._failures), asked_s or 0.0)
