"""`LiveState` in process: the least recently used entries are dropped first, and the store answers for those.

Of several namespaces the one that has the most gives up its own: what a tenant says fills no other's memory."""

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from api.live_state.buckets import Buckets
from api.live_state.changes import Channels
from api.live_state.counting import Slots
from api.live_state.recent import RecentlyUsed, bytes_of
from core.ids import InferenceId, Namespace, SessionId
from core.ports import Allowance, Bucket, Changes, CountWindow, RecentCounts, TokenChain

V = TypeVar("V")


class Rooms(Generic[V]):
    """The most recently used entries of several rooms, which share one bound on their weight.

    Beyond the bound the heaviest room gives up its oldest entry, so nobody crowds others out of their rooms. There must
    be few rooms, since all are searched for the heaviest."""

    def __init__(self, max_weight: int) -> None:
        self._rooms: dict[Hashable, RecentlyUsed[V]] = {}
        self._max_weight = max_weight
        self._weight = 0

    def put(self, room: Hashable, key: Hashable, value: V, weight: int) -> None:
        self.drop(room, key)
        self._rooms.setdefault(room, RecentlyUsed()).put(key, value, weight)
        self._weight += weight
        while self._weight > self._max_weight:
            heaviest = max(self._rooms.values(), key=lambda each: each.weight)
            self._weight -= heaviest.drop_oldest()

    def get(self, room: Hashable, key: Hashable) -> V | None:
        entries = self._rooms.get(room)
        return None if entries is None else entries.get(key)

    def drop(self, room: Hashable, key: Hashable) -> None:
        entries = self._rooms.get(room)
        if entries is not None:
            self._weight -= entries.drop(key)


class Windows:
    """Counts that begin anew every minute; the least recently used are forgotten first."""

    def __init__(self, max_bytes: int) -> None:
        self._counts: RecentlyUsed[int] = RecentlyUsed(max_bytes)

    def spend(self, windows: Sequence[CountWindow]) -> list[int]:
        had = [self._counts.get(window.name) or 0 for window in windows]
        if not any(passes(window, count) for window, count in zip(windows, had, strict=True)):
            for window, count in zip(windows, had, strict=True):
                if window.add:
                    self._counts.put(window.name, count + window.add, bytes_of(window.name))
        return had


def passes(window: CountWindow, had: int) -> bool:
    """Return whether a window whose count is `had` would pass its limit."""
    return window.limit is not None and had + max(window.add, 1) > window.limit


MAX_BYTES: Final = 32 << 20  # of each map: about 100,000 entries of names that nobody made long
MAX_CHAIN_BYTES: Final = 96 << 20
_TOKEN_BYTES: Final = 36  # at most, within a tuple


class MemoryLiveState:
    """Live state of one process, used from one event loop; nothing here waits, except for changes."""

    state: Final = "ok"

    def __init__(self, max_bytes: int = MAX_BYTES, max_chain_bytes: int = MAX_CHAIN_BYTES) -> None:
        self._chains: Rooms[TokenChain] = Rooms(max_chain_bytes)
        self._inferences: Rooms[SessionId] = Rooms(max_bytes)
        self._sessions: Rooms[bool] = Rooms(max_bytes)
        self._claims: Rooms[str] = Rooms(max_bytes)
        self._buckets = Buckets(max_bytes)
        self._windows = Windows(max_bytes)
        self.slots = Slots()
        self.channels = Channels()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def put_inference(self, namespace: Namespace, inference_id: InferenceId, session_id: SessionId) -> None:
        self.know(namespace, inference_id, session_id)

    def know(self, namespace: Namespace, inference_id: InferenceId, session_id: SessionId) -> None:
        """Put an inference, at once."""
        self._inferences.put(namespace, inference_id, session_id, bytes_of(inference_id, session_id))
        self._sessions.put(namespace, session_id, True, bytes_of(session_id))

    async def put_chain(self, namespace: Namespace, transcript_digests: Sequence[str], chain: TokenChain) -> None:
        await self.put_inference(namespace, chain.inference_id, chain.session_id)
        share = -(-len(chain.token_ids) * _TOKEN_BYTES // max(1, len(transcript_digests)))  # all keep the same tuple
        for digest in transcript_digests:
            self._chains.put(namespace, digest, chain, share + bytes_of(digest))

    async def settle(self) -> None:
        return None

    async def get_chain(self, namespace: Namespace, transcript_digests: Sequence[str]) -> TokenChain | None:
        for digest in transcript_digests:
            chain = self._chains.get(namespace, digest)
            if chain is not None:
                return chain
        return None

    async def get_session(self, namespace: Namespace, inference_id: InferenceId) -> SessionId | None:
        return self._inferences.get(namespace, inference_id)

    async def has_session(self, namespace: Namespace, session_id: SessionId) -> bool:
        return self._sessions.get(namespace, session_id) is not None

    async def claim(self, namespace: Namespace, key: str, content_digest: str) -> str:
        room = _room(namespace, key)
        holder = self._claims.get(room, key)
        if holder is None:
            self._claims.put(room, key, content_digest, bytes_of(key, content_digest))
            return content_digest
        return holder

    async def claim_of(self, namespace: Namespace, key: str) -> str | None:
        return self._claims.get(_room(namespace, key), key)

    async def release_claim(self, namespace: Namespace, key: str, content_digest: str) -> None:
        room = _room(namespace, key)
        if self._claims.get(room, key) == content_digest:
            self._claims.drop(room, key)

    async def take(self, buckets: Sequence[Bucket]) -> list[Allowance]:
        return self._buckets.take(buckets)

    async def spend(self, windows: Sequence[CountWindow], life_s: float) -> list[int]:
        return self._windows.spend(windows)

    def count(self, namespace: Namespace, name: str) -> None:
        self.slots.count(namespace, name)

    async def counts(self, namespace: Namespace) -> RecentCounts:
        return RecentCounts(counts=self.slots.totals(namespace), complete=True)

    def announce(self, channel: str) -> None:
        self.channels.announce(channel)

    def changes(self, channel: str) -> AbstractContextManager[Changes]:
        return self.channels.changes(channel)


def _room(namespace: Namespace, key: str) -> tuple[Namespace, str]:
    """Return the room of a claim: its namespace, and its kind, which stands before the key's first colon."""
    return namespace, key.partition(":")[0]
