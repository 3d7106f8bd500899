"""`LiveState` in process: least recently used entries go first, and the store answers for what has gone."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

from core.ids import InferenceId, Namespace, SessionId
from core.ports import Chain

V = TypeVar("V")

DEFAULT_ENTRIES = 100_000
DEFAULT_CHAIN_TOKENS = 2_000_000  # at most 36 bytes each: 72 MB


class _Recent(Generic[V]):
    """A map that keeps its most recently used entries, by their number and their total weight."""

    def __init__(self, max_entries: int, max_weight: int) -> None:
        self._entries: OrderedDict[object, tuple[V, int]] = OrderedDict()
        self._max_entries = max_entries
        self._max_weight = max_weight
        self._weight = 0

    def put(self, key: object, value: V, weight: int = 0) -> None:
        self.drop(key)
        self._entries[key] = (value, weight)
        self._weight += weight
        while len(self._entries) > self._max_entries or (self._weight > self._max_weight and len(self._entries) > 1):
            self._weight -= self._entries.popitem(last=False)[1][1]

    def get(self, key: object) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def drop(self, key: object) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._weight -= entry[1]


class MemoryLiveState:
    """Used from one event loop; nothing here waits."""

    def __init__(self, max_entries: int = DEFAULT_ENTRIES, max_chain_tokens: int = DEFAULT_CHAIN_TOKENS) -> None:
        self._chains: _Recent[Chain] = _Recent(max_entries, max_chain_tokens)
        self._inferences: _Recent[SessionId] = _Recent(max_entries, 0)
        self._sessions: _Recent[bool] = _Recent(max_entries, 0)
        self._claims: _Recent[str] = _Recent(max_entries, 0)

    async def put_chain(self, namespace: Namespace, transcript_digest: str, chain: Chain) -> None:
        self._chains.put((namespace, transcript_digest), chain, len(chain.token_ids))

    async def get_chain(self, namespace: Namespace, transcript_digests: Sequence[str]) -> Chain | None:
        for digest in transcript_digests:
            chain = self._chains.get((namespace, digest))
            if chain is not None:
                return chain
        return None

    async def put_inference(self, namespace: Namespace, inference_id: InferenceId, session_id: SessionId) -> None:
        self._inferences.put((namespace, inference_id), session_id)
        self._sessions.put((namespace, session_id), True)

    async def get_session(self, namespace: Namespace, inference_id: InferenceId) -> SessionId | None:
        return self._inferences.get((namespace, inference_id))

    async def has_session(self, namespace: Namespace, session_id: SessionId) -> bool:
        return self._sessions.get((namespace, session_id)) is not None

    async def claim(self, namespace: Namespace, key: str, content_digest: str) -> str:
        holder = self._claims.get((namespace, key))
        if holder is None:
            self._claims.put((namespace, key), content_digest)
            return content_digest
        return holder

    async def release_claim(self, namespace: Namespace, key: str) -> None:
        self._claims.drop((namespace, key))
