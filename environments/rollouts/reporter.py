"""The reports of a journal on their way to the service, until it has taken each of them."""

import asyncio
import logging
import time
from typing import Final

from environments.errors import InfrastructureFailure
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.reports import Report
from environments.rollouts.service import Service

_AT_ONCE: Final = 8
_AGAIN_S: Final = 1.0
_SETTLED_S: Final = 5.0
"""How long a session may remain unknown after its attempt ended: the answer that it made may still be on its way into
the log. Beyond that it has no turn, so that there is nothing to be said of it."""
_KNOWN_S: Final = 600.0
"""The same for a session of which an answer was received: a service that was away first reads what its log holds."""
logger = logging.getLogger(__name__)


class Reporter:
    """Tells the service what the journal holds. Losing all of this loses nothing but time."""

    def __init__(self, journal: RolloutJournal, service: Service) -> None:
        self._journal, self._service = journal, service
        self._news = asyncio.Event()
        self._unknown_since_s: dict[str, float] = {}
        self._waits = False  # for a service that cannot take reports now

    def news(self) -> None:
        """Take note that there may be something to tell."""
        self._news.set()

    async def keep_telling(self) -> None:
        """Tell whatever comes, until cancelled."""
        while True:
            self._news.clear()
            await self.tell_all()
            await self._news.wait()

    async def tell_all(self) -> None:
        """Tell all that is untold, however long the service is away."""
        while reports := self._journal.untold():
            told = 0
            for start in range(0, len(reports), _AT_ONCE):
                answers = await asyncio.gather(*map(self._tell, reports[start : start + _AT_ONCE]))
                told += sum(answers)
                if self._waits and not any(answers):  # all others would wait alike
                    break
            if not told:
                await asyncio.sleep(_AGAIN_S)

    async def _tell(self, report: Report) -> bool:
        """Tell one report, and return whether that is done with."""
        try:
            answer = await self._service.tell(report)
        except InfrastructureFailure as failure:
            if not self._waits:  # said once, however long it takes
                logger.warning("reports wait, first that on session %s: %s", report.session_id, failure)
            self._waits = True
            return False
        self._waits = False
        if answer == "unknown_session" and not self._is_settled(report):
            return False
        if answer.startswith("refused"):
            logger.error("the report on session %s was not taken: %s", report.session_id, answer)
        self._journal.told(report.feedback_id, answer)
        self._unknown_since_s.pop(report.feedback_id, None)
        return True

    def _is_settled(self, report: Report) -> bool:
        now_s = time.monotonic()
        return now_s - self._unknown_since_s.setdefault(report.feedback_id, now_s) >= (
            _KNOWN_S if report.has_turns else _SETTLED_S
        )
