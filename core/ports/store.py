"""The store and the cache beside it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
from sqlalchemy import Connection

from core.ids import InferenceId, Namespace, SessionId


class Store(Protocol):
    """SQL. `core.store`'s modules hold the queries as functions of a connection, the same for every database."""

    def begin(self) -> AbstractContextManager[Connection]:
        """A read-write transaction, committed on leaving. Raises StoreUnavailable. Blocks: keep off the event loop."""
        ...

    def read(self) -> AbstractContextManager[Connection]:
        """A consistent read. Raises StoreUnavailable."""
        ...

    def close(self) -> None: ...


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a transcript up to and including one answer: what the next turn's prompt continues."""

    inference_id: InferenceId
    session_id: SessionId
    turn_index: int
    num_messages: int  # of the transcript, the answer included
    token_ids: tuple[int, ...]  # prompt and answer


class LiveState(Protocol):
    """A cache beside the store. Losing all of it costs speed, and that a turn which is not in the store yet is not
    continued: what follows it is rendered afresh."""

    async def put_chain(self, namespace: Namespace, transcript_digest: str, chain: Chain) -> None: ...

    async def get_chain(self, namespace: Namespace, transcript_digests: Sequence[str]) -> Chain | None:
        """The chain of the first digest that is known."""
        ...

    async def put_inference(self, namespace: Namespace, inference_id: InferenceId, session_id: SessionId) -> None: ...

    async def get_session(self, namespace: Namespace, inference_id: InferenceId) -> SessionId | None: ...

    async def has_session(self, namespace: Namespace, session_id: SessionId) -> bool:
        """Whether an inference of the session was put."""
        ...

    async def claim(self, namespace: Namespace, key: str, content_digest: str) -> str:
        """Remember the content first seen under an idempotency key; returns the content that holds it."""
        ...

    async def release_claim(self, namespace: Namespace, key: str) -> None: ...
