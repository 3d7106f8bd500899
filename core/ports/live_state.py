"""The cache beside the store: what API replicas tell one another without asking it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from core.ids import InferenceId, Namespace, SessionId

REWARDS: Final = "rewards"  # the channel on which a scorer says that the store has new rewards


class TokenChain(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a transcript up to and including one answer: what the next turn's prompt continues."""

    inference_id: InferenceId
    session_id: SessionId
    turn_index: int
    num_messages: int  # of the transcript, the answer included
    token_ids: tuple[int, ...]  # prompt and answer


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A limit: `burst` requests at once, and then as many as it is refilled with."""

    name: str
    rate_per_s: float
    burst: int


class CountWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A count that begins anew: its name says of which minute it is."""

    name: str
    add: int
    limit: int | None = None  # nothing is added to any window where this would be passed; None: no limit


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens in a rate limit's bucket."""

    wait_s: float  # until it has one again; 0: it had one
    remaining: int
    full_in_s: float


class RecentCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the last minute, to within the width of a slot; names that were not counted are absent."""

    counts: Mapping[str, int]
    complete: bool  # over all API replicas; else of this one alone


class Announcer(Protocol):
    def announce(self, channel: str) -> None:
        """Wake those who wait for changes of the channel, in every process. From any thread; never blocks or raises.

        Announcements may be lost or merged: waiting readers also poll now and then."""
        ...


class Changes(Protocol):
    async def wait(self, timeout_s: float) -> bool:
        """Return whether the channel was announced since the last wait ended (or since this object was made).

        False after `timeout_s`."""
        ...


class LiveState(Announcer, Protocol):
    """A cache beside the store.

    Losing all of it costs speed, and the continuation of turns that are not in the store yet: the next prompt is then
    rendered afresh. It is used from one event loop, within `async with`. No operation raises when a server behind it is
    unreachable: it then does what it can for this process alone."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def state(self) -> str:
        """The state: "ok", or why replicas do not see one another's entries."""
        ...

    async def put_inference(self, namespace: Namespace, inference_id: InferenceId, session_id: SessionId) -> None: ...

    async def put_chain(self, namespace: Namespace, transcript_digests: Sequence[str], chain: TokenChain) -> None:
        """Under each of the digests. Its inference is put too, as by `put_inference`."""
        ...

    async def settle(self) -> None:
        """Wait until other replicas know the inferences that were put here, a few seconds at most.

        They may fail to; `state` says so then."""
        ...

    async def get_chain(self, namespace: Namespace, transcript_digests: Sequence[str]) -> TokenChain | None:
        """Return the chain of the first known digest."""
        ...

    async def get_session(self, namespace: Namespace, inference_id: InferenceId) -> SessionId | None: ...

    async def has_session(self, namespace: Namespace, session_id: SessionId) -> bool:
        """Return whether an inference of the session was put."""
        ...

    async def claim(self, namespace: Namespace, key: str, content_digest: str) -> str | None:
        """Remember the content first seen under an idempotency key; return the content that holds the key.

        A key is `kind:name`. What this process keeps of one kind crowds out nothing of another, nor of another
        namespace; of one kind those that were used longest ago are forgotten first.

        None: this process knows of no other content, and cannot tell whether another process does."""
        ...

    async def claim_of(self, namespace: Namespace, key: str) -> str | None:
        """Return the content that holds the key, without claiming it; None where no holder is known."""
        ...

    async def release_claim(self, namespace: Namespace, key: str, content_digest: str) -> None:
        """Release the key if that content holds it. Other replicas that claimed it may still hold it."""
        ...

    async def take(self, buckets: Sequence[Bucket]) -> list[Allowance]:
        """One from each bucket; from none where one of them is empty. For each what it has afterwards."""
        ...

    async def spend(self, windows: Sequence[CountWindow], life_s: float) -> list[int]:
        """Add to each window, or to none where one would pass its limit; return what each has had before.

        A window of which nothing is to be added must have at least one left. Windows are forgotten after `life_s`."""
        ...

    def count(self, namespace: Namespace, name: str) -> None:
        """Never waits."""
        ...

    async def counts(self, namespace: Namespace) -> RecentCounts: ...

    def changes(self, channel: str) -> AbstractContextManager[Changes]: ...
