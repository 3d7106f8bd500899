"""The log as requests write to it: the bytes of each record count against the sender's quotas.

They count all that is stored of a request, also what the model is never shown."""

from api.access.identity import Identity
from api.access.quotas.admission import Quotas
from core.events import Completion, Outcome, SessionEnded, Topic
from core.operations.quotas import Use
from core.ports import EventLog, Position


class CountedLog:
    """The log of one process, on one event loop."""

    def __init__(self, log: EventLog, quotas: Quotas) -> None:
        self._log, self._quotas = log, quotas

    async def record(self, identity: Identity, event: Completion | Outcome | SessionEnded) -> Position:
        """Append what somebody said; durable when it returns. Raises LogUnavailable.

        It is never refused here, whatever was used: who may have nothing more stored is refused before."""
        position = await self._log.append(Topic.TURNS, event)
        user = identity.user if isinstance(event, SessionEnded) else event.user_id
        await self._quotas.charge(identity, user, Use(stored_bytes=position.size))
        return position
