"""The ports: what a stage may ask of the world. Adapters live in the stages; `onward.wiring` chooses among them.

Each port is as large as its harder adapter needs (Kafka, Postgres, Redis, SGLang, S3). `tests/contracts` holds one
suite per port, run over every adapter.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec
from sqlalchemy import Connection

from core.events import Event, FinishReason, Sampling, ToolCall, Topic, VersionSpan
from core.fleet import Assignment
from core.ids import InferenceId, Namespace, SessionId, Version

# --------------------------------------------------------------------------------------------- the log


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    topic: Topic
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record was put. The offset is -1 while it waits, durably, in the spool: the log gives it later."""

    topic: Topic
    partition: int
    offset: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record as read. `event` is None when `raw` does not decode; `error` then says why."""

    topic: Topic
    partition: int
    offset: int
    appended_at: datetime
    raw: bytes
    event: Event | None
    error: str | None = None

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class RebalanceListener(Protocol):
    """Told from within `Consumer.poll`, on the caller's thread."""

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None: ...

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Still the owner: last chance to commit."""

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Another member may already own them: commits would be fenced."""


class Consumer(Protocol):
    """One member of a group. Not thread-safe: one thread polls, commits, seeks and closes.

    An offset is always the *next* message: committing 7 says that 0..6 are done.
    """

    @property
    def epoch(self) -> int:
        """The fencing epoch of this membership; grows with every new owner of the group."""
        ...

    def assignment(self) -> frozenset[TopicPartition]: ...

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Records in offset order per partition; [] after `timeout_s` with nothing to read.

        Starts at the committed offset, or at the earliest where none was committed.
        Raises NewerSchema at a record of a newer build: the consumer stays before it.
        """
        ...

    def position(self, partition: TopicPartition) -> int: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def committed(self, partition: TopicPartition) -> int | None: ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durable when it returns. Raises Fenced when the partitions belong to another member."""
        ...

    def close(self) -> None: ...


class EventLog(Protocol):
    """The durable, ordered, partitioned log. Thread-safe."""

    async def append(self, topic: Topic, event: Event) -> Position:
        """Durable when it returns. Never blocks the event loop. Raises LogUnavailable; then nothing was appended
        unless the message says that it is unknown."""
        ...

    def append_blocking(self, topic: Topic, events: Sequence[Event]) -> list[Position]:
        """The same for threads; all events in one batch, in order per partition."""
        ...

    def consumer(self, group: str, topics: Sequence[Topic], listener: RebalanceListener | None = None) -> Consumer:
        """Join a group. Raises GroupBusy where only one member is possible and there is one."""
        ...

    def partitions(self, topic: Topic) -> int: ...

    def earliest(self, partition: TopicPartition) -> int: ...

    def end(self, partition: TopicPartition) -> int:
        """The offset that the next record will have."""
        ...

    def close(self) -> None: ...


# --------------------------------------------------------------------------------------------- the store


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
    """A cache beside the store. Losing all of it loses nothing but speed."""

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


# --------------------------------------------------------------------------------------------- the model


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    inference_id: InferenceId
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    top_logprobs: int = 0
    version: Version | None = None  # None: whatever is live, following swaps
    cache_key: str | None = None  # requests with one key share prefixes: the session


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Newly sampled tokens, each with its behaviour log-probability and all from one policy version."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: Version  # UNKNOWN where the engine names none of ours
    confirmed: bool = True  # whether `version` is certain without the `version_spans` of the last chunk
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    finish_reason: FinishReason | None = None
    replica: str | None = None
    cached_tokens: int | None = None  # of the prompt, known with the first chunk
    untrainable_reasons: tuple[str, ...] = ()  # what the engine could not vouch for
    version_spans: tuple[VersionSpan, ...] | None = None
    """With the last chunk, where the engine tells only then for sure: over all tokens, instead of the chunks' own."""


class Policy(Protocol):
    """Generates. `capture` says what the engine can vouch for."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Chunks as they are sampled; the last has a finish_reason. Closing the iterator aborts the request. A token of
        `stop_token_ids` ends the answer and is part of it; an engine may also end it at the model's own end-of-text
        tokens. `sampling.seed` is best effort, as in OpenAI's API: an engine that cannot repeat itself ignores it.
        Raises EngineUnavailable (after the first chunk only when the engine is lost), InvalidRequest for what the model
        cannot do."""
        ...

    def untrainable(self, sampling: Sampling) -> tuple[str, ...]:
        """Why turns sampled like this cannot be trained on (design: exactly what was sampled); () when they can."""
        ...

    @property
    def live_version(self) -> Version: ...

    @property
    def context_length(self) -> int: ...


class Traffic(Protocol):
    """Which version a user is served by: the arms of the running experiment."""

    def assign(self, unit: str) -> Assignment:
        """The same unit (a user's hash, or the session where there is no user) has the same arm while an experiment
        runs. Never blocks."""
        ...


class OutputDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What newly decoded tokens mean to the client."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()  # complete calls, in order


class OutputParser(Protocol):
    """Turns one answer's tokens into content and tool calls, incrementally. Never emits half a character."""

    def feed(self, token_ids: Sequence[int]) -> OutputDelta: ...

    def finish(self) -> OutputDelta:
        """What was held back. A tool call that never became whole is content."""
        ...


class Renderer(Protocol):
    """Messages to token ids and back, for one model. Imports no torch."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer_digest(self) -> str: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """The prompt, up to where the assistant speaks. Raises InvalidRequest naming the message."""
        ...

    def extend(self, token_ids: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """`token_ids` (a prompt and its answer, as sampled) continued by the new messages: a prompt that begins
        with exactly those tokens. Closes an answer that was cut off."""
        ...

    def render_text(self, prompt: str, suffix: str | None) -> tuple[int, ...]:
        """A raw completion's prompt; with a suffix in the model's fill-in-the-middle form.
        Raises InvalidRequest where the model has none."""
        ...

    def parser(self, *, tools: bool) -> OutputParser: ...

    def token_text(self, token_id: int) -> str:
        """One token as text, for `logprobs`; bytes that are no character alone become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes: ...


# --------------------------------------------------------------------------------------------- the weights


class WeightsRef(msgspec.Struct, frozen=True, kw_only=True):
    """Weights in Blobs. `digest` covers names, dtypes, shapes and bytes (core.weights_digest)."""

    version: Version
    digest: str
    path: str  # blob path of the manifest
    parent: Version | None = None


class Weights(Protocol):
    """Published weights. Blocks: keep off the event loop."""

    def publish(self, version: Version, shards: Sequence[Path], parent: Version | None) -> WeightsRef:
        """Store safetensors shards as `version`, atomically: a reader sees all or nothing. Again with the same
        content: the same answer; with other content: WeightsError."""
        ...

    def open(self, ref: WeightsRef) -> Sequence[Path]:
        """Local, verified safetensors shards. Raises WeightsError naming what is missing or corrupt."""
        ...

    def chain(self, ref: WeightsRef) -> Sequence[WeightsRef]:
        """What `open` reads where nothing is there yet, from the anchor to `ref`."""
        ...

    def discard(self, version: Version) -> None: ...  # it opens no more; what others need of it stays while they do


class Engine(Protocol):
    """The host of one engine: verifies versions, and makes the engine serve one. Blocks: keep off the event loop."""

    @property
    def name(self) -> str:
        """Of the replica, as stamped on the turns it served."""
        ...

    @property
    def url(self) -> str:
        """Where the engine answers; "" within this process."""
        ...

    @property
    def holds_many(self) -> bool:
        """Whether requests may be pinned to every loaded version; else only to the one that serves."""
        ...

    def serving(self) -> Version | None:
        """What unpinned requests are served by, confirmed; None while the engine is away, hangs, was started again,
        or serves what nobody confirmed."""
        ...

    def pinnable(self) -> frozenset[Version]:
        """Versions that requests may ask for by number now."""
        ...

    def loaded(self) -> Mapping[Version, str]:
        """Versions verified on this host and ready to be switched to, with the digest of what is held."""
        ...

    def load(self, ref: WeightsRef) -> None:
        """Fetch, verify, and hold beside what serves. Raises WeightsError; serving goes on untouched."""
        ...

    def probe(self, version: Version) -> Mapping[str, float]:
        """Figures of a loaded version on the probe set: `finite` (0 or 1), `kl_to_live`, `entropy`."""
        ...

    def switch(self, version: Version) -> None:
        """Serve `version` from the next token on; running requests continue under it. Drops nobody. Returns when what
        serves is confirmed. Raises WeightsError when the version cannot serve: the engine then serves the last good
        one again, or `serving` is None. Raises EngineUnavailable when the engine is away."""
        ...

    def unload(self, version: Version) -> None:
        """Raises Conflict while it serves or a request is pinned to it."""
        ...


class Blobs(Protocol):
    """Files by path under one root (fsspec: a directory, S3, GCS). Paths are relative, with slashes."""

    def put(self, path: str, data: bytes) -> None:
        """Atomic and durable when it returns."""
        ...

    def put_file(self, path: str, source: Path) -> None: ...

    def get(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    is_local: bool  # whether `local` is the blob itself

    def local(self, path: str, target: Path | None = None) -> Path:
        """The blob as a local file, fetched where it is remote: to `target`, a new file, where it is given."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str) -> list[str]: ...

    def delete(self, path: str) -> None: ...


class Clock(Protocol):
    def now(self) -> datetime:
        """UTC, timezone-aware. Replay takes it from the log."""
        ...

    def monotonic(self) -> float:
        """Seconds, for durations."""
        ...
