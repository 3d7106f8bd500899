"""The words of users that hold, in memory: every request asks, and nobody waits for the store."""

import asyncio
import time
from typing import Final

from api.access.services import ApiServices
from core.errors import StoreUnavailable
from core.ids import Namespace, SessionId, UserHash
from core.operations.consents import ALL, Allowed, Consent, ConsentKind

REFRESH_S: Final = 1.0
"""How old they may be: so long does another process take to hear of a word."""
_Subject = tuple[Namespace, ConsentKind, str]


class KnownConsents:
    """What is narrowed for whom; who said nothing, or allowed all again, takes no room."""

    def __init__(self) -> None:
        self._narrowed: dict[_Subject, Allowed] = {}
        self._last = 0  # the number of the last word that was read
        self._read_s: float | None = None
        self._reading = asyncio.Lock()

    @property
    def are_all(self) -> bool:
        """True where nobody narrowed anything."""
        return not self._narrowed

    async def refresh(self, services: ApiServices) -> None:
        """Read what is new, if it is time to. Raises StoreUnavailable where nothing was ever read.

        Later a store that does not answer is no reason to refuse: what is known holds on."""
        if self._is_fresh():
            return
        async with self._reading:
            if self._is_fresh():
                return
            begun_s = time.monotonic()
            try:
                found, last = await asyncio.to_thread(self._after, services)
            except StoreUnavailable:
                if self._read_s is None:
                    raise
                self._read_s = time.monotonic()  # nobody else waits for it meanwhile
                return
            for consent in found:
                self.take(consent)
            self._last = last
            self._read_s = begun_s

    def _after(self, services: ApiServices) -> tuple[list[Consent], int]:
        """Return the new words that hold, as older ones may come from other clusters, and the last word's number."""
        with services.store.look() as view:
            last = view.consents.last()
            return view.consents.holding_after(self._last), last

    def take(self, consent: Consent) -> None:
        """Let a word hold from now on. It must be newer than those that it replaces."""
        subject = consent.namespace, consent.kind, consent.subject
        if consent.allows == ALL:
            self._narrowed.pop(subject, None)
        else:
            self._narrowed[subject] = consent.allows

    def of(self, namespace: Namespace, user: UserHash | None, session: SessionId | None) -> Allowed:
        """Return what is allowed of what a user says in a session: the narrower of both."""
        if not self._narrowed:
            return ALL
        of_user = ALL if user is None else self._narrowed.get((namespace, "user", user), ALL)
        of_session = ALL if session is None else self._narrowed.get((namespace, "session", session), ALL)
        return of_user.narrowed(of_session)

    def _is_fresh(self) -> bool:
        return self._read_s is not None and time.monotonic() - self._read_s < REFRESH_S
