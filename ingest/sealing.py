"""Sealing: what users say is encrypted with a key of its session before it reaches a log that cannot be rewritten.

Whoever deletes the key has erased the record; what is left to read is its shell, a tombstone with ids and times.

    C1 01, size of the shell (u32), shell, key's id (16 bytes), nonce (12), AES-256-GCM over the event (NIST SP 800-38D)

The shell is authenticated with it. C1 begins no MessagePack value, and so no record that was never sealed. The keys are
in the store (`core.store.erasure.keys`): while that is away, nothing new is sealed, and the spool takes it."""

import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from core.codec import encode
from core.events import Completion, DeadLetter, Event, Outcome, Reward
from core.ids import Namespace, SessionId
from core.operations.erasures import tombstone
from core.ports import Clock, Store

KEY_S: Final = 5.0
"""How long a process seals with a key before it asks for it again."""
RETIRED_S: Final = 2 * KEY_S
"""How long ago a key has to be retired before it is deleted: by then nobody seals with it."""
_MAGIC: Final = b"\xc1\x01"
_SIZE: Final = struct.Struct("<I")
_ID_BYTES, _NONCE_BYTES = 16, 12
_MOST_KEYS: Final = 10_000
_Subject = tuple[Namespace, SessionId]


class Seals:
    """Seals and opens records; thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._known: OrderedDict[_Subject, tuple[bytes, AESGCM, float]] = OrderedDict()

    def is_ready(self, event: Event) -> bool:
        """Return whether an event can be sealed without asking the store."""
        subject = _subject_of(event)
        return subject is None or self._cached(subject) is not None

    def seal(self, event: Event) -> bytes:
        """Return the bytes of an event, sealed where it says something. Raises StoreUnavailable. It may block."""
        if isinstance(event, DeadLetter):
            return encode(msgspec.structs.replace(event, raw=b""))  # the store has it whole
        subject = _subject_of(event)
        if subject is None:
            return encode(event)
        key_id, cipher = self._cached(subject) or self._asked(subject)
        shell, nonce = encode(tombstone(event)), os.urandom(_NONCE_BYTES)
        sealed = cipher.encrypt(nonce, encode(event), shell)
        return b"".join((_MAGIC, _SIZE.pack(len(shell)), shell, key_id, nonce, sealed))

    def opened(self, raws: Sequence[bytes]) -> list[bytes]:
        """Return the bytes of events; of those whose key was deleted, their shells'. Raises StoreUnavailable."""
        ids = {_key_id(raw) for raw in raws if is_sealed(raw)}
        if not ids:
            return list(raws)
        with self._store.look() as view:
            keys = view.session_keys.get_many(ids)
        ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        return [_opened(raw, ciphers.get(_key_id(raw))) if is_sealed(raw) else raw for raw in raws]

    def _cached(self, subject: _Subject) -> tuple[bytes, AESGCM] | None:
        with self._lock:
            known = self._known.get(subject)
        if known is None or time.monotonic() >= known[2]:
            return None
        return known[0], known[1]

    def _asked(self, subject: _Subject) -> tuple[bytes, AESGCM]:
        until_s = time.monotonic() + KEY_S  # from before the store is asked
        with self._store.work() as work:
            key_id, key = work.session_keys.of_session(*subject, self._clock.now())
        cipher = AESGCM(key)
        with self._lock:
            self._known[subject] = key_id, cipher, until_s
            self._known.move_to_end(subject)
            if len(self._known) > _MOST_KEYS:
                self._known.popitem(last=False)
        return key_id, cipher


def is_sealed(raw: bytes) -> bool:
    return raw.startswith(_MAGIC) and len(raw) > len(_MAGIC) + _SIZE.size


def _subject_of(event: Event) -> _Subject | None:
    """Return whose key seals an event; None where it says nothing.

    An outcome that names only its turn is sealed with a key of that turn."""
    match event:
        case Completion() | Reward():
            return event.namespace, event.session_id
        case Outcome():
            return event.namespace, event.session_id or SessionId(event.inference_id or "")
        case _:
            return None


def _split(raw: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return shell, key id, nonce and what is sealed."""
    start = len(_MAGIC) + _SIZE.size
    end = start + _SIZE.unpack_from(raw, len(_MAGIC))[0]
    nonce = end + _ID_BYTES
    return raw[start:end], raw[end:nonce], raw[nonce : nonce + _NONCE_BYTES], raw[nonce + _NONCE_BYTES :]


def _key_id(raw: bytes) -> bytes:
    return _split(raw)[1]


def _opened(raw: bytes, cipher: AESGCM | None) -> bytes:
    shell, _, nonce, sealed = _split(raw)
    if cipher is None:
        return shell
    try:
        return cipher.decrypt(nonce, sealed, shell)
    except InvalidTag:
        return raw  # which does not decode: a dead letter
