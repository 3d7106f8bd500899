"""`LiveState` in Redis, for many API replicas.

Each replica keeps a `MemoryLiveState` in front: it need not ask for what it put or read itself (a transcript's chain
continues it whenever it was put), and while Redis is unreachable that is all there is."""

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

import msgspec
from redis.asyncio import Redis

from api.live_state import redis_scripts as scripts
from api.live_state.buckets import allowance
from api.live_state.counting import SLOT_S, SLOTS, Slot, recent_slots
from api.live_state.memory import MemoryLiveState
from api.live_state.redis_link import FAULTS, OK, Command, RedisLink, RedisUnavailable
from core.ids import InferenceId, Namespace, SessionId
from core.ports import Allowance, Bucket, Changes, CountWindow, RecentCounts, TokenChain
from core.settings import RedisSettings
from core.telemetry import LIVE_STATE_FALLBACKS

BEAT_S: Final = 1.0  # how often Redis is tried, and sent counts
FORGOTTEN_S: Final = 60.0
"""How long claims may be missing in Redis after it was empty, or came back; the writer is less far behind."""
_SETTLE_S: Final = 3 * BEAT_S  # by then every replica has found out that Redis is unreachable
_MAX_UNSENT: Final = 10_000  # the oldest are dropped, as Redis itself would
_COUNTS_LIFE_S: Final = 2 * SLOTS * SLOT_S


class RedisLiveState:
    """The port's adapter for Redis. Every operation is one round trip or none."""

    def __init__(self, settings: RedisSettings, forgotten_s: float = FORGOTTEN_S) -> None:
        """Prepare live state, which connects only in `async with`. Raises ConfigError."""
        self._settings = settings
        self._forgotten_s = forgotten_s
        self._life_ms = round(settings.entry_ttl_s * 1000)
        self._link = RedisLink(settings)
        self._local = MemoryLiveState()
        self._unsent: deque[Command] = deque(maxlen=_MAX_UNSENT)
        """Inferences that Redis has yet to be sent. It may be the only one that can tell other replicas: a turn in the
        spool here is neither in the log nor in the store."""
        self._all_sent = asyncio.Event()
        self._replica = uuid4().hex
        self._channel = changes_channel(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> str:
        return self._link.state

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._beat()
        self._tasks = [self._loop.create_task(work()) for work in (self._keep_beating, self._listen)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop = None
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._link.close()
        await self._link.pool.aclose()

    # ------------------------------------------------------------------------------------------ turns

    async def put_inference(self, namespace: Namespace, inference_id: InferenceId, session_id: SessionId) -> None:
        await self._local.put_inference(namespace, inference_id, session_id)
        command = self._putting(namespace, inference_id, session_id)
        try:
            await self._link.ask("put_inference", *command)
        except RedisUnavailable:
            self._keep_unsent(command)

    def _keep_unsent(self, command: Command) -> None:
        self._unsent.append(command)
        self._all_sent.clear()

    def _putting(self, namespace: Namespace, inference_id: InferenceId, session_id: SessionId) -> Command:
        keys = self._key("inference", namespace, inference_id), self._key("session", namespace, session_id)
        return "EVAL", scripts.PUT_INFERENCE, len(keys), *keys, self._life_ms, session_id

    async def put_chain(self, namespace: Namespace, transcript_digests: Sequence[str], chain: TokenChain) -> None:
        await self._local.put_chain(namespace, transcript_digests, chain)
        keys = [
            self._key("chain", namespace, chain.inference_id),
            self._key("inference", namespace, chain.inference_id),
            self._key("session", namespace, chain.session_id),
            *(self._key("transcript", namespace, digest) for digest in transcript_digests),
        ]
        arguments = self._life_ms, pack(chain), chain.session_id, chain.inference_id
        try:
            await self._link.ask("put_chain", "EVAL", scripts.PUT_CHAIN, len(keys), *keys, *arguments)
        except RedisUnavailable:
            self._keep_unsent(self._putting(namespace, chain.inference_id, chain.session_id))

    async def settle(self) -> None:
        left_s = _SETTLE_S - self._link.lost_for_s
        if self._unsent and left_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._all_sent.wait()

    async def get_chain(self, namespace: Namespace, transcript_digests: Sequence[str]) -> TokenChain | None:
        for place, digest in enumerate(transcript_digests):
            known = await self._local.get_chain(namespace, (digest,))
            if known is not None:
                better = transcript_digests[:place]
                return (await self._ask_chain(namespace, better) if better else None) or known
        return await self._ask_chain(namespace, transcript_digests)

    async def _ask_chain(self, namespace: Namespace, digests: Sequence[str]) -> TokenChain | None:
        keys = [self._key("transcript", namespace, digest) for digest in digests]
        found = await self._try("get_chain", scripts.GET_CHAIN, keys, self._key("chain", namespace, ""), self._life_ms)
        if not found:
            return None
        chain = unpack(found[1])
        if chain is None:
            LIVE_STATE_FALLBACKS.labels("get_chain", "undecodable").inc()
        else:
            await self._local.put_chain(namespace, (digests[found[0] - 1],), chain)
        return chain

    async def get_session(self, namespace: Namespace, inference_id: InferenceId) -> SessionId | None:
        known = await self._local.get_session(namespace, inference_id)
        if known is not None:
            return known
        found = await self._get("get_session", self._key("inference", namespace, inference_id))
        return None if found is None else SessionId(found.decode())

    async def has_session(self, namespace: Namespace, session_id: SessionId) -> bool:
        if await self._local.has_session(namespace, session_id):
            return True
        return await self._get("has_session", self._key("session", namespace, session_id)) is not None

    # ------------------------------------------------------------------------------------------ claims, limits

    async def claim(self, namespace: Namespace, key: str, content_digest: str) -> str | None:
        """Claim a key, and return the content that holds it, or None where that is not known.

        A claim that this replica holds itself stays, whatever Redis has forgotten. Where Redis may have forgotten
        another's claim, the holder is unknown."""
        known = await self._local.claim_of(namespace, key)
        if known not in (None, content_digest):
            return known
        keys = self._key("claim", namespace, key), f"{self._settings.prefix}unforgotten"
        found = await self._try("claim", scripts.CLAIM, keys, self._life_ms, content_digest)
        holder = None if found is None else found[0].decode()
        if holder not in (None, content_digest):
            return str(holder)
        await self._local.claim(namespace, key, content_digest)
        remembers = found is not None and min(found[1] / 1000, self._link.connected_for_s) >= self._forgotten_s
        return content_digest if remembers else None

    async def claim_of(self, namespace: Namespace, key: str) -> str | None:
        known = await self._local.claim_of(namespace, key)
        if known is not None:
            return known
        found = await self._get("claim_of", self._key("claim", namespace, key))
        return None if found is None else str(found.decode())

    async def release_claim(self, namespace: Namespace, key: str, content_digest: str) -> None:
        await self._local.release_claim(namespace, key, content_digest)
        await self._try("release_claim", scripts.RELEASE, [self._key("claim", namespace, key)], content_digest)

    async def take(self, buckets: Sequence[Bucket]) -> list[Allowance]:
        """Take a token from each bucket.

        While Redis is unreachable each replica limits alone: together they let more pass, none lets less."""
        keys = [f"{self._settings.prefix}bucket:{bucket.name}" for bucket in buckets]
        arguments = [value for bucket in buckets for value in (1 / bucket.rate_per_s, bucket.burst)]
        try:
            reply = await self._link.ask("take", "EVAL", scripts.TAKE, len(keys), *keys, *arguments)
        except RedisUnavailable:
            return await self._local.take(buckets)
        waits, full_in = map(float, reply[::2]), map(float, reply[1::2])
        return [allowance(*of) for of in zip(buckets, full_in, waits, strict=True)]

    async def spend(self, windows: Sequence[CountWindow], life_s: float) -> list[int]:
        """Add to windows. While Redis is unreachable each replica counts alone: together they let more pass."""
        keys = [f"{self._settings.prefix}window:{window.name}" for window in windows]
        limits = [-1 if window.limit is None else window.limit for window in windows]
        amounts = [value for window, limit in zip(windows, limits, strict=True) for value in (window.add, limit)]
        try:
            had = await self._link.ask("spend", "EVAL", scripts.SPEND, len(keys), *keys, round(life_s * 1000), *amounts)
        except RedisUnavailable:
            return await self._local.spend(windows, life_s)
        return list(map(int, had))

    # ------------------------------------------------------------------------------------------ counts, changes

    def count(self, namespace: Namespace, name: str) -> None:
        self._local.count(namespace, name)

    async def counts(self, namespace: Namespace) -> RecentCounts:
        changed = self._local.slots.take_changed()
        self._link.send(*self._counted(changed))
        keys = [self._slot_key(slot) for slot in recent_slots(namespace)]
        try:
            reply = await self._link.ask("counts", "EVAL", scripts.SUM_COUNTS, len(keys), *keys)
        except RedisUnavailable:
            self._local.slots.put_back(changed)
            return msgspec.structs.replace(await self._local.counts(namespace), complete=False)
        sums = {name.decode(): int(sum_) for name, sum_ in zip(reply[::2], reply[1::2], strict=True)}
        return RecentCounts(counts=sums, complete=True)

    def _counted(self, slots: dict[Slot, Any]) -> list[Command]:
        """Return commands that set this replica's own fields to its counts, so that repeating them changes nothing."""
        commands: list[Command] = []
        for slot, counts in slots.items():
            key = self._slot_key(slot)
            fields = [part for name, count in counts.items() for part in (f"{self._replica}:{name}", count)]
            commands += [("HSET", key, *fields), ("EXPIRE", key, _COUNTS_LIFE_S)]
        return commands

    def announce(self, channel: str) -> None:
        self._local.announce(channel)
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._link.send, ("PUBLISH", self._channel, channel))

    def changes(self, channel: str) -> AbstractContextManager[Changes]:
        return self._local.changes(channel)

    # ------------------------------------------------------------------------------------------ the server

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self._beat()

    async def _beat(self) -> None:
        changed, unsent = self._local.slots.take_changed(), list(self._unsent)
        try:
            await self._link.beat(*self._counted(changed), *unsent)
        except RedisUnavailable:
            self._local.slots.put_back(changed)
        else:
            for _ in unsent:
                self._unsent.popleft()
            if not self._unsent:
                self._all_sent.set()

    async def _listen(self) -> None:
        """Pass on announcements. Those made while nobody listened are made up for by waking everybody."""
        redis = Redis(connection_pool=self._link.pool)
        while True:
            try:
                async with redis.pubsub() as pubsub:
                    async with asyncio.timeout(self._settings.timeout_s):
                        await pubsub.subscribe(self._channel)
                    self._local.channels.announce_all()
                    while self.state == OK:
                        message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=BEAT_S)
                        if message is not None:
                            self._local.announce(message["data"].decode(errors="replace"))
            except FAULTS:
                pass  # the beat finds out, and logs it
            await asyncio.sleep(BEAT_S)

    async def _try(self, operation: str, script: str, keys: Sequence[str], *arguments: str | bytes | int) -> Any:
        """Run a script and return its reply, or None when Redis is unreachable."""
        try:
            return await self._link.ask(operation, "EVAL", script, len(keys), *keys, *arguments)
        except RedisUnavailable:
            return None

    async def _get(self, operation: str, key: str) -> Any:
        """Return the value of a key, or None when it has none or Redis is unreachable."""
        try:
            return await self._link.ask(operation, "GETEX", key, "PX", self._life_ms)
        except RedisUnavailable:
            return None

    def _key(self, kind: str, namespace: Namespace, rest: str) -> str:
        """Return the name of a key, with the length of the namespace, which may have any characters."""
        return f"{self._settings.prefix}{kind}:{len(namespace)}:{namespace}:{rest}"

    def _slot_key(self, slot: Slot) -> str:
        return self._key("counts", slot[0], str(slot[1]))


def changes_channel(settings: RedisSettings) -> str:
    return f"{settings.prefix}changes"


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    inference_id: InferenceId
    session_id: SessionId
    turn_index: int
    num_messages: int
    token_ids: bytes  # four bytes each, little-endian


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


def pack(chain: TokenChain) -> bytes:
    token_ids = struct.pack(f"<{len(chain.token_ids)}I", *chain.token_ids)
    return _encode(_Packed(chain.inference_id, chain.session_id, chain.turn_index, chain.num_messages, token_ids))


def unpack(raw: bytes) -> TokenChain | None:
    """Return a packed chain, or None for bytes that are no chain, or a chain of another build."""
    try:
        packed = _decode(raw)
        token_ids = struct.unpack(f"<{len(packed.token_ids) // 4}I", packed.token_ids)
    except (msgspec.DecodeError, struct.error):
        return None
    return TokenChain(
        inference_id=packed.inference_id,
        session_id=packed.session_id,
        turn_index=packed.turn_index,
        num_messages=packed.num_messages,
        token_ids=token_ids,
    )
