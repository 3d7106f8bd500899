"""Who has what redacted: the policies of namespaces, and what a process remembers of their sessions."""

import hashlib
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping
from threading import Lock
from typing import Final

from api.redaction.finder import Finder
from api.redaction.placeholders import Scope
from api.redaction.redaction import Redaction
from core.errors import ConfigError
from core.ids import Namespace, SessionId
from core.settings.privacy import PrivacySettings, Redactable

_SLOW_CHARACTERS: Final = 8192  # about 3 ms
_MOST_SESSIONS: Final = 1000
_MOST_VALUES: Final = 256
logger = logging.getLogger(__name__)


class Redactors:
    """The redaction of all namespaces."""

    def __init__(self, privacy: PrivacySettings, secret: str) -> None:
        """Make it; `secret` is that of users' hashes, of which placeholders are made with a key of their own."""
        self._privacy = privacy
        self._key = hashlib.blake2b(secret.encode(), digest_size=32, person=b"redaction").digest()
        asked = {privacy.redact, *(privacy.redacted_in(name) for name in privacy.namespaces)}
        self._finders: dict[tuple[Redactable, ...], Finder] = {each: Finder(each) for each in asked if each}

    def check_namespaces(self, known: Collection[str] | None) -> None:
        """Raise ConfigError for a namespace that no key belongs to: a misspelt name would protect nobody.

        `known` None: the store's keys are not known, and none can be refused."""
        if known is None:
            if self._privacy.namespaces:
                logger.warning("privacy.namespaces is not checked: the store, which has API keys, does not answer")
            return
        for name in self._privacy.namespaces:
            if name not in known:
                raise ConfigError(f"settings: privacy.namespaces.{name}: no API key belongs to it")

    def finder(self, namespace: Namespace) -> Finder | None:
        """Return the finder of a namespace; None where nothing is redacted."""
        return self._finders.get(self._privacy.redacted_in(namespace)) if self._finders else None

    def begin(
        self, namespace: Namespace, speaker: str | None, known: Mapping[str, str] | None = None
    ) -> Redaction | None:
        """Begin the redaction of a request; None where nothing is redacted."""
        finder = self.finder(namespace)
        return None if finder is None else Redaction(finder, Scope(self._key, namespace, speaker), known)

    def restores(self, namespace: Namespace) -> bool:
        return self._privacy.restores_in(namespace)

    def is_slow(self, namespace: Namespace, characters: int) -> bool:
        """Return whether so much text is better redacted on a thread."""
        return characters > _SLOW_CHARACTERS and self.finder(namespace) is not None


class SessionValues:
    """The values of sessions' placeholders, in the memory of this process alone and for the newest sessions.

    They give an answer its values back where the request names what was said before without repeating it, and tell
    what feedback must not say either. A process that has forgotten them leaves placeholders as they are. Of several
    namespaces the one that has the most sessions forgets first."""

    def __init__(self) -> None:
        self._sessions: defaultdict[Namespace, OrderedDict[SessionId, dict[str, str]]] = defaultdict(OrderedDict)
        self._count = 0
        self._lock = Lock()

    def of(self, namespace: Namespace, session_id: SessionId) -> dict[str, str]:
        with self._lock:
            sessions = self._sessions.get(namespace)
            return {} if sessions is None else dict(sessions.get(session_id, ()))

    def put(self, namespace: Namespace, session_id: SessionId, values: Mapping[str, str]) -> None:
        if not values:
            return
        with self._lock:
            sessions = self._sessions[namespace]
            self._count += session_id not in sessions
            kept = sessions.setdefault(session_id, {})
            sessions.move_to_end(session_id)
            kept.update(values)
            for placeholder in list(kept)[:-_MOST_VALUES]:
                del kept[placeholder]
            if self._count > _MOST_SESSIONS:
                max(self._sessions.values(), key=len).popitem(last=False)
                self._count -= 1
