"""The audit trail of requests: what a key read or changed stands in the store before its answer begins.

A deed that has a transaction of its own is written in it. All others are written together with those that come
meanwhile, on a thread, and the answer waits for that; if they cannot be written, the answer is a 503."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec
from fastapi import Request

from api.access.identity import Identity
from api.http.asgi import Message, Scope, Send, send_error
from api.http.errors import shape_of
from core.errors import Unavailable
from core.ids import UserHash
from core.operations.audit import Deed, DeedKind
from core.ports import Clock, Store
from core.records.audit_head import HeadFile
from core.store.work import Work
from core.telemetry import AUDITED

NOTE: Final = "onward.audit_note"
"""The name of a request's note in its scope."""
_REMEMBERED: Final = 10_000  # reads that are not written again for a while
_REFUSED = 400
_BROKEN = 500
_MOST_REFUSALS: Final = 60
"""Refused requests of a key in `_REFUSALS_S` that are written one by one; of more, each kind once, without ids."""
_REFUSALS_S: Final = 60.0
_LONGEST_ID = 128


@dataclass
class Note:
    """What the trail will say of one request; routes add what they alone know."""

    deed: Deed | None = None
    was_written: bool = False

    def saw(self, *users: UserHash | None) -> None:
        """Say whose turns are shown."""
        if self.deed is not None:
            known = tuple(dict.fromkeys(user for user in users if user is not None))
            self.deed = msgspec.structs.replace(self.deed, users=known)

    def add(self, namespace: str | None = None, **objects: object) -> None:
        """Add ids of what came of it, and the namespace that it is about, where that is not the caller's own."""
        if self.deed is None:
            return
        named = {**self.deed.objects, **{name: str(value) for name, value in objects.items()}}
        about = self.deed.namespace if namespace is None else namespace
        self.deed = msgspec.structs.replace(self.deed, objects=named, namespace=about)

    def write(self, work: Work, namespace: str | None = None, **objects: object) -> None:
        """Write it as the last thing in a transaction, so that it is there if and only if the rest is."""
        self.add(namespace, **objects)
        if self.deed is not None:
            work.audit.append([self.deed])
            self.was_written = True


class Trail:
    """The trail as one process writes it, from one event loop."""

    def __init__(self, store: Store, head: HeadFile | None, clock: Clock, repeat_s: float) -> None:
        """`head` is where the trail's head is kept, or None; the same read is written once in `repeat_s`."""
        self._store, self._head, self._clock, self._repeat_s = store, head, clock, repeat_s
        self._waiting: list[tuple[Deed, asyncio.Future[None]]] = []
        self._writes: asyncio.Task[None] | None = None
        self._written: OrderedDict[tuple[object, ...], float] = OrderedDict()
        self._refused: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()  # since when, how many

    async def keep(self, note: Note, status: int) -> None:
        """Write what a request did, unless its transaction has. Raises StoreUnavailable."""
        if note.deed is None or status >= _BROKEN:
            return
        if note.was_written:
            if self._head is not None:
                await asyncio.to_thread(self._head.keep, self._store)
            AUDITED.labels(note.deed.kind).inc()
            if status < 400:
                return
        deed = msgspec.structs.replace(note.deed, status=status)
        if status >= _REFUSED and self._is_one_of_many(deed):
            await self._write_once(msgspec.structs.replace(deed, objects={}), max(self._repeat_s, _REFUSALS_S))
        elif deed.kind == "read":
            await self._write_once(deed, self._repeat_s)
        else:
            await self._write(deed)

    def _is_one_of_many(self, deed: Deed) -> bool:
        """Return whether more of a key's requests were refused lately than are written one by one.

        The trail is kept for ever, and to be refused costs a client nothing."""
        now, whose = self._clock.monotonic(), (deed.by, deed.key)
        since, refused = self._refused.pop(whose, (now, 0))
        if now - since >= _REFUSALS_S:
            since, refused = now, 0
        self._refused[whose] = since, refused + 1
        if len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        return refused >= _MOST_REFUSALS

    async def _write_once(self, deed: Deed, repeat_s: float) -> None:
        """Write what was not written within `repeat_s`."""
        what = deed.by, deed.key, deed.what, deed.namespace, tuple(deed.objects.items()), deed.users, deed.status
        if self._clock.monotonic() - self._written.get(what, -repeat_s) < repeat_s:
            return
        await self._write(deed)
        self._written[what] = self._clock.monotonic()
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    async def _write(self, deed: Deed) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((deed, done))
        if self._writes is None or self._writes.done():
            self._writes = asyncio.get_running_loop().create_task(self._write_all())
        await done

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            append = asyncio.to_thread(self._append, [deed for deed, _ in batch])
            (error,) = await asyncio.gather(append, return_exceptions=True)
            for _, done in batch:
                if done.cancelled():
                    continue
                if error is None:
                    done.set_result(None)
                else:  # whatever it is, nobody waits for ever
                    done.set_exception(error)

    def _append(self, deeds: list[Deed]) -> None:
        with self._store.work() as work:
            work.audit.append(deeds)
        if self._head is not None:
            self._head.keep(self._store)
        for deed in deeds:
            AUDITED.labels(deed.kind).inc()


def begin_note(request: Request, identity: Identity, clock: Clock, kind: DeedKind, what: str, namespace: str) -> None:
    """Note what an identified caller wants to do, whether it may or not. What is no id is not written down."""
    note = note_of(request)
    note.deed = Deed(
        at=clock.now(),
        by=identity.by,
        key=identity.fingerprint,
        namespace=namespace,
        kind=kind,
        what=what,
        objects={name: value for name, value in request.path_params.items() if _is_id(value)},
    )


def _is_id(value: str) -> bool:
    return len(value) <= _LONGEST_ID and value.isascii() and value.isprintable() and " " not in value


def note_of(request: Request) -> Note:
    note: Note = request.scope[NOTE]
    return note


def noted(trail: Trail, scope: Scope, send: Send) -> Send:
    """Return a way to send that writes the request's note before its answer begins."""
    note = scope[NOTE] = Note()
    was_refused = False

    async def sending(message: Message) -> None:
        nonlocal was_refused
        if was_refused:
            return
        if message["type"] == "http.response.start" and note.deed is not None:
            try:
                await trail.keep(note, message["status"])
            except Unavailable as error:
                was_refused = True
                await send_error(send, error, shape_of(scope))
                return
        await send(message)

    return sending
