"""The consents that requests obey: this process caches those of recent users and sessions, and looks for changes."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from api.access.looking import Looking
from api.http.background import on_a_thread
from core.errors import StoreUnavailable
from core.operations.consents import UNSAID, Consent, ConsentSubject, KeptConsent, narrowest
from core.ports import Store
from core.telemetry import UNHEARD_CONSENTS

LOOK_S: Final = 1.0
"""The seconds between two looks: a change at one replica holds at all of them after so long."""
NOTHING: Final = Consent(learn=False, store=False)
"""What is allowed while nobody can tell."""
_KNOWN: Final = 100_000  # cached subjects
_NEWS: Final = 1000  # changes of one query


class KeptConsents(Looking):
    """The cached consents of one process, on one event loop; within its context it looks for changes.

    Where nobody has ever said anything, nothing is looked up. While the store does not answer, what was heard holds,
    and a subject of which nothing was heard allows nothing: what is stored or learned cannot be called back as
    easily as it can be missed."""

    def __init__(self, store: Store) -> None:
        super().__init__(LOOK_S, "consents cannot be read, and stay as they were")
        self._store = store
        self._revision: int | None = None  # up to which changes were heard; None: the store has not answered yet
        self._known: OrderedDict[ConsentSubject, Consent] = OrderedDict()

    async def of(self, subjects: Sequence[ConsentSubject]) -> Consent:
        """Return what all of these subjects allow."""
        if self._revision == 0:
            return UNSAID
        while unknown := [subject for subject in subjects if subject not in self._known]:
            try:
                found = await on_a_thread(self._ask, unknown)
            except StoreUnavailable:
                UNHEARD_CONSENTS.inc()
                return NOTHING
            for subject in unknown:  # unless a change was heard meanwhile, which is newer
                self._known.setdefault(subject, found.get(subject, UNSAID))
        allowed = narrowest(self._known[subject] for subject in subjects)
        self._forget(subjects)
        return allowed

    async def look(self) -> None:
        """Read all changes. Raises StoreUnavailable."""
        while await self._hear():
            pass

    async def _hear(self) -> bool:
        """Read some changes; return whether there may be more."""
        if self._revision is None:
            self._revision = await asyncio.to_thread(self._newest)
            return False
        news = await asyncio.to_thread(self._changes, self._revision)
        for kept in news:
            self._known[kept.subject] = kept.consent
            self._revision = kept.revision
        return len(news) == _NEWS

    def _forget(self, used: Sequence[ConsentSubject]) -> None:
        for subject in used:
            self._known.move_to_end(subject)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def _ask(self, subjects: Sequence[ConsentSubject]) -> dict[ConsentSubject, Consent]:
        with self._store.look() as view:
            return view.consents.of(subjects)

    def _newest(self) -> int:
        with self._store.look() as view:
            return view.consents.revision()

    def _changes(self, since: int) -> list[KeptConsent]:
        with self._store.look() as view:
            return view.consents.changed_since(since, _NEWS)
