"""`LiveState` of a process beside the first one.

Every operation is a question to the first one, or none. While that is away there is a `MemoryLiveState` of this process
alone; what was put there that only this process can know is told once the first one is back."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from api.live_state.beside.words import ANNOUNCED, COUNTED, KNOWN, READ_ANSWER, TOPIC, encode, read_channel
from api.live_state.memory import MemoryLiveState
from core.beside.line import OK, Line, Lost
from core.ids import InferenceId, Namespace, SessionId
from core.ports import Allowance, Bucket, Changes, CountWindow, RecentCounts, TokenChain
from core.telemetry import LIVE_STATE_FALLBACKS

_ANSWER_S: Final = 5.0
_SETTLE_S: Final = 3.0
_TELL_S: Final = 0.05  # what is counted meanwhile is told at once
_MAX_UNTOLD: Final = 10_000  # the oldest are dropped, as the first process itself would


class BesideLiveState:
    """The port's adapter over a line that others close."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._local = MemoryLiveState()
        self._untold: deque[tuple[Namespace, InferenceId, SessionId]] = deque(maxlen=_MAX_UNTOLD)
        self._all_told = asyncio.Event()
        self._is_counting = False
        self._loop: asyncio.AbstractEventLoop | None = None
        line.hear(ANNOUNCED, lambda body: self._local.announce(read_channel(body)))
        line.when_connected(self._catch_up)

    @property
    def state(self) -> str:
        return self._line.state

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._line.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell_counts()
        self._loop = None

    # ------------------------------------------------------------------------------------------ turns

    async def put_inference(self, namespace: Namespace, inference_id: InferenceId, session_id: SessionId) -> None:
        try:
            await self._ask("put_inference", namespace, inference_id, session_id)
        except Lost:
            await self._local.put_inference(namespace, inference_id, session_id)
            self._keep_untold(namespace, inference_id, session_id)

    async def put_chain(self, namespace: Namespace, transcript_digests: Sequence[str], chain: TokenChain) -> None:
        try:
            await self._ask("put_chain", namespace, transcript_digests, chain)
        except Lost:
            await self._local.put_chain(namespace, transcript_digests, chain)
            self._keep_untold(namespace, chain.inference_id, chain.session_id)

    def _keep_untold(self, namespace: Namespace, inference_id: InferenceId, session_id: SessionId) -> None:
        self._untold.append((namespace, inference_id, session_id))
        self._all_told.clear()

    async def settle(self) -> None:
        left_s = _SETTLE_S - (monotonic() - self._line.lost_s)
        if self._untold and left_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._all_told.wait()

    async def get_chain(self, namespace: Namespace, transcript_digests: Sequence[str]) -> TokenChain | None:
        try:
            found: TokenChain | None = await self._ask("get_chain", namespace, transcript_digests)
        except Lost:
            found = None
        return found or await self._local.get_chain(namespace, transcript_digests)

    async def get_session(self, namespace: Namespace, inference_id: InferenceId) -> SessionId | None:
        try:
            found: SessionId | None = await self._ask("get_session", namespace, inference_id)
        except Lost:
            found = None
        return found or await self._local.get_session(namespace, inference_id)

    async def has_session(self, namespace: Namespace, session_id: SessionId) -> bool:
        try:
            found = bool(await self._ask("has_session", namespace, session_id))
        except Lost:
            found = False
        return found or await self._local.has_session(namespace, session_id)

    # ------------------------------------------------------------------------------------------ claims, limits

    async def claim(self, namespace: Namespace, key: str, content_digest: str) -> str | None:
        """Claim a key, and return the content that holds it, or None while the first process cannot be asked.

        A claim that was made here meanwhile stays, as the first process does not know of it."""
        known = await self._local.claim_of(namespace, key)
        if known not in (None, content_digest):
            return known
        try:
            return str(await self._ask("claim", namespace, key, content_digest))
        except Lost:
            await self._local.claim(namespace, key, content_digest)
            return None

    async def claim_of(self, namespace: Namespace, key: str) -> str | None:
        known = await self._local.claim_of(namespace, key)
        if known is not None:
            return known
        try:
            holder: str | None = await self._ask("claim_of", namespace, key)
        except Lost:
            return None
        return holder

    async def release_claim(self, namespace: Namespace, key: str, content_digest: str) -> None:
        await self._local.release_claim(namespace, key, content_digest)
        with suppress(Lost):
            await self._ask("release_claim", namespace, key, content_digest)

    async def take(self, buckets: Sequence[Bucket]) -> list[Allowance]:
        """Take a token from each bucket. While the first process is away this one limits alone."""
        try:
            taken: list[Allowance] = await self._ask("take", buckets)
        except Lost:
            return await self._local.take(buckets)
        return taken

    async def spend(self, windows: Sequence[CountWindow], life_s: float) -> list[int]:
        """Add to windows. While the first process is away this one counts alone."""
        try:
            had: list[int] = await self._ask("spend", windows, life_s)
        except Lost:
            return await self._local.spend(windows, life_s)
        return had

    # ------------------------------------------------------------------------------------------ counts, changes

    def count(self, namespace: Namespace, name: str) -> None:
        self._local.count(namespace, name)
        if not self._is_counting and self._loop is not None:
            self._is_counting = True
            self._loop.call_later(_TELL_S, self._tell_counts)

    def _tell_counts(self) -> None:
        """Tell what was counted since the last time, or while nobody could be told."""
        self._is_counting = False
        if self._line.state == OK:
            slots = self._local.slots.take_all()
            if slots:
                counted = [(namespace, slot, counts) for (namespace, slot), counts in slots.items()]
                self._line.tell(COUNTED, encode(counted))

    async def counts(self, namespace: Namespace) -> RecentCounts:
        self._tell_counts()
        try:
            counts: RecentCounts = await self._ask("counts", namespace)
        except Lost:
            return msgspec.structs.replace(await self._local.counts(namespace), complete=False)
        return counts

    def announce(self, channel: str) -> None:
        """Wake all who wait: the first process tells everybody, this process too."""
        loop = self._loop
        if loop is None or loop.is_closed():
            self._local.announce(channel)
        else:
            loop.call_soon_threadsafe(self._announce, channel)

    def _announce(self, channel: str) -> None:
        if not self._line.tell(ANNOUNCED, encode(channel)):
            self._local.announce(channel)

    def changes(self, channel: str) -> AbstractContextManager[Changes]:
        return self._local.changes(channel)

    # ------------------------------------------------------------------------------------------ the first process

    async def _ask(self, operation: str, *arguments: object) -> Any:
        """Return the answer of the first process. Raises Lost."""
        try:
            body = await self._line.ask(TOPIC + operation, encode(arguments), _ANSWER_S)
        except Lost:
            LIVE_STATE_FALLBACKS.labels(operation, "away").inc()
            raise
        return READ_ANSWER[operation](body)

    def _catch_up(self) -> None:
        """Tell what the first process could not be told, and wake everybody: announcements may have been missed."""
        while self._untold:
            self._line.tell(KNOWN, encode(self._untold.popleft()))
        self._all_told.set()
        self._tell_counts()
        self._local.channels.announce_all()
