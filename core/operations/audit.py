"""The audit trail: who read, ordered, changed or deleted what. Each entry has the digest of the one before it.

An entry's digest is the BLAKE3 of its canonical JSON: all its fields, in the order of their names, without spaces, as
UTF-8. So anybody can check an exported trail with a few lines of any language. An entry has ids, names and keyed
hashes, and nobody's words."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from blake3 import blake3

from core.codec import to_builtins
from core.ids import UserHash

DeedKind = Literal["read", "order", "change", "delete"]
NOTHING: Final = ""
"""The digest before the first entry."""


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody did, before it has its place in the trail."""

    at: datetime
    by: str  # the key's name or fingerprint, `keyless`, or `shell:` and a name of the machine's
    key: str | None = None  # fingerprint of the key; None where there was none
    namespace: str = ""  # whose things it was about; "": everybody's
    kind: DeedKind
    what: str  # the route as docs/security.md lists it, or the command
    objects: dict[str, str] = {}  # ids in the route, and those that came of it
    users: tuple[UserHash, ...] = ()  # whose turns were read, where it is turns of few
    status: int | None = None  # of the answer; None: written in the transaction that did it


class AuditEntry(Deed, frozen=True, kw_only=True):
    sequence: int  # 1, 2, 3, …
    previous: str  # digest of the entry before it


class StoredEntry(msgspec.Struct, frozen=True):
    """An entry as it rests. `record` is its canonical JSON."""

    sequence: int
    namespace: str
    record: bytes
    digest: str


class AuditHead(msgspec.Struct, frozen=True):
    """The newest entry at some moment, kept apart from the trail: a trail that lacks it was changed or cut off.

    `seal`: the keyed BLAKE3 of `sequence:digest`, which nobody can make who lacks `audit.key`; None without one."""

    sequence: int
    digest: str
    seal: str | None = None


class Tampered(msgspec.Struct, frozen=True):
    """A place where the trail is not what was written."""

    sequence: int
    why: str


def canonical(entry: AuditEntry) -> bytes:
    return msgspec.json.encode(to_builtins(entry), order="sorted")


def digest_of(record: bytes) -> str:
    return str(blake3(record).hexdigest())


def chain(deeds: Iterable[Deed], sequence: int, previous: str) -> Iterator[StoredEntry]:
    """Yield deeds as the entries that follow the one with this number and digest."""
    for deed in deeds:
        sequence += 1
        fields = {name: getattr(deed, name) for name in deed.__struct_fields__}
        record = canonical(AuditEntry(**fields, sequence=sequence, previous=previous))
        previous = digest_of(record)
        yield StoredEntry(sequence, deed.namespace, record, previous)


def sealed(head: AuditHead, key: str | None) -> AuditHead:
    """Return the head with its seal, or without one where there is no key."""
    if key is None:
        return head
    seal = blake3(f"{head.sequence}:{head.digest}".encode(), key=blake3(key.encode()).digest()).hexdigest()
    return AuditHead(head.sequence, head.digest, str(seal))


def find_tampering(
    entries: Iterable[StoredEntry], heads: Iterable[AuditHead], key: str | None = None
) -> Iterator[Tampered]:
    """Yield every place at which a whole trail, the oldest entry first, is not what was written.

    `heads` were kept apart: each must be in it. With a `key` they must have its seal."""
    wanted = defaultdict[int, set[str]](set)
    for head in heads:
        wanted[head.sequence].add(head.digest)
        if key is not None and head.seal != sealed(head, key).seal:
            yield Tampered(head.sequence, "the head that was kept does not have the seal of audit.key")
    expected, previous = 1, NOTHING
    for entry in entries:
        yield from _faults(entry, expected, previous)
        if wanted.pop(entry.sequence, {entry.digest}) != {entry.digest}:
            yield Tampered(entry.sequence, "another entry stood here when its digest was kept as the head")
        expected, previous = entry.sequence + 1, entry.digest
    for sequence in sorted(wanted):
        if sequence > 0:
            yield Tampered(sequence, f"the trail ends with entry {expected - 1}, and once had this one")


def _faults(entry: StoredEntry, expected: int, previous: str) -> Iterator[Tampered]:
    if entry.sequence != expected:
        yield Tampered(expected, f"removed, up to entry {entry.sequence - 1}")
    if digest_of(entry.record) != entry.digest:
        yield Tampered(entry.sequence, "its digest is not that of what it says")
    said: dict[str, Any] = msgspec.json.decode(entry.record)
    if entry.sequence == expected and said.get("previous") != previous:
        yield Tampered(entry.sequence, "it does not follow the entry before it")
    if (said.get("sequence"), said.get("namespace")) != (entry.sequence, entry.namespace):
        yield Tampered(entry.sequence, "its columns are not what it says")
