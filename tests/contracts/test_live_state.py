"""What every live state promises, in memory and in Redis. `here` and `there` are what two API replicas hold."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis as redis_py
from hypothesis import given, settings
from hypothesis import strategies as st
from services import require_services

from api.buckets import wait_s
from api.live_state import MemoryLiveState
from api.redis_announcer import RedisAnnouncer
from api.redis_live_state import RedisLiveState, pack, unpack
from core.errors import ConfigError
from core.ids import InferenceId, Namespace, SessionId
from core.ports import Bucket, Chain, LiveState
from core.settings import RedisSettings

ACME, OTHER = Namespace("acme"), Namespace("other")
WAIT_S = 10.0
Pair = tuple[LiveState, LiveState]
Scenario = Callable[[LiveState, LiveState], Coroutine[Any, Any, None]]


def redis_settings(**changes: Any) -> RedisSettings:
    """Of a prefix that nobody else has; patient, for the machine may be busy."""
    chosen = {"url": require_services().redis, "prefix": f"test-{uuid.uuid4().hex}:", "timeout_s": 5.0, **changes}
    return RedisSettings(**chosen)


@dataclass(frozen=True)
class Adapter:
    pair: Callable[[], Any]

    def run(self, scenario: Scenario) -> None:
        async def work() -> None:
            async with self.pair() as (here, there):
                await scenario(here, there)

        asyncio.run(work())


@asynccontextmanager
async def in_memory() -> AsyncIterator[Pair]:
    """All replicas of one process share it."""
    async with MemoryLiveState() as state:
        yield state, state


@asynccontextmanager
async def in_redis(chosen: RedisSettings | None = None) -> AsyncIterator[tuple[RedisLiveState, RedisLiveState]]:
    chosen = chosen or redis_settings()
    async with RedisLiveState(chosen, forgotten_s=0) as here, RedisLiveState(chosen, forgotten_s=0) as there:
        yield here, there


ADAPTERS = {"memory": Adapter(in_memory), "redis": Adapter(in_redis)}


@pytest.fixture(params=ADAPTERS, scope="module")
def adapter(request: pytest.FixtureRequest) -> Adapter:
    if request.param == "redis":
        require_services()
    return ADAPTERS[request.param]


def chain(number: int = 1, token_ids: tuple[int, ...] = (1, 2, 3)) -> Chain:
    return Chain(
        inference_id=InferenceId(f"i{number}"),
        session_id=SessionId(f"s{number}"),
        turn_index=number,
        num_messages=2,
        token_ids=token_ids,
    )


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110 - what changes is in another process
            await asyncio.sleep(0.005)


# --------------------------------------------------------------------------------------------- turns


def test_the_first_digest_that_is_known_wins(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        await here.put_chain(ACME, ["a"], chain(1))
        await there.put_chain(ACME, ["b", "b2"], chain(2))
        for state in (here, there, here):
            assert await state.get_chain(ACME, ["x", "b", "a"]) == chain(2)
            assert await state.get_chain(ACME, ["a", "b"]) == chain(1)
            assert await state.get_chain(ACME, ["y", "b2"]) == chain(2)
            assert await state.get_chain(ACME, ["x", "y"]) is None
            assert await state.get_chain(ACME, []) is None
            assert await state.get_chain(OTHER, ["a", "b"]) is None

    adapter.run(scenario)


def test_what_a_replica_has_itself_hides_nothing_better(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        await here.put_chain(ACME, ["short"], chain(1))
        assert await here.get_chain(ACME, ["long", "short"]) == chain(1)
        await there.put_chain(ACME, ["long"], chain(2))
        assert await here.get_chain(ACME, ["long", "short"]) == chain(2)

    adapter.run(scenario)


def test_inferences_and_sessions_are_known_to_their_namespace(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        await here.put_inference(ACME, InferenceId("i1"), SessionId("s1"))
        await there.put_chain(ACME, ["a"], chain(2))
        for state in (here, there):
            assert await state.get_session(ACME, InferenceId("i1")) == "s1"
            assert await state.get_session(ACME, InferenceId("i2")) == "s2"
            assert [await state.has_session(ACME, SessionId(s)) for s in ("s1", "s2", "s3")] == [True, True, False]
            assert await state.get_session(ACME, InferenceId("i3")) is None
            assert await state.get_session(OTHER, InferenceId("i1")) is None
            assert not await state.has_session(OTHER, SessionId("s1"))

    adapter.run(scenario)


NAMES = st.text(max_size=6)


@settings(max_examples=30)
@given(first=st.tuples(NAMES, NAMES), second=st.tuples(NAMES, NAMES))
def test_no_two_keys_are_one(adapter: Adapter, first: tuple[str, str], second: tuple[str, str]) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        for number, (namespace, digest) in enumerate((first, second)):
            await here.put_chain(Namespace(namespace), [digest], chain(number))
        found = [await there.get_chain(Namespace(namespace), [digest]) for namespace, digest in (first, second)]
        assert found == [chain(int(first == second)), chain(1)]

    adapter.run(scenario)


TOKEN_IDS = st.lists(st.integers(0, (1 << 32) - 1)).map(tuple)


@given(token_ids=TOKEN_IDS, cut=st.integers(1, 20))
def test_chains_are_packed_whole(token_ids: tuple[int, ...], cut: int) -> None:
    packed = pack(chain(1, token_ids))
    assert unpack(packed) == chain(1, token_ids)
    assert len(packed) <= 4 * len(token_ids) + 40
    assert unpack(packed[:-cut]) is None


def test_a_conversation_of_a_million_tokens_fits(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        big = chain(1, tuple(range(1_000_000)))
        await here.put_chain(ACME, ["a"], big)
        await here.put_chain(ACME, ["b"], chain(2))
        assert await there.get_chain(ACME, ["a", "b"]) == big
        assert await there.get_chain(ACME, ["b", "a"]) == chain(2)

    adapter.run(scenario)


# --------------------------------------------------------------------------------------------- claims


def test_a_claim_is_held_until_it_is_released(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        assert await here.claim(ACME, "k", "a") == "a"
        for state in (here, there):
            assert [await state.claim(ACME, "k", content) for content in "bcb"] == ["a", "a", "a"]
        assert await here.claim(ACME, "k", "a") == "a"
        assert await there.claim(OTHER, "k", "b") == "b"
        await there.release_claim(ACME, "k", "b")
        assert await there.claim(ACME, "k", "b") == "a", "only its holder releases it"
        await here.release_claim(ACME, "k", "a")
        assert await there.claim(ACME, "k", "b") == "b"
        assert await here.claim(ACME, "k", "a") == "b"

    adapter.run(scenario)


def test_of_many_claims_at_once_one_holds(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        for number in range(20):
            claims = [state.claim(ACME, f"k{number}", f"{at}") for at, state in enumerate((here, there) * 8)]
            assert len(set(await asyncio.gather(*claims))) == 1

    adapter.run(scenario)


# --------------------------------------------------------------------------------------------- limits


def bucket(rate_per_s: float = 0.001, burst: int = 3) -> Bucket:
    return Bucket(name=uuid.uuid4().hex, rate_per_s=rate_per_s, burst=burst)


def test_a_burst_passes_and_then_as_many_as_the_rate(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        slow = bucket()
        taken = [(await state.take([slow]))[0] for state in (here, there, here, there, here)]
        assert [one.remaining for one in taken] == [2, 1, 0, 0, 0]
        assert [one.wait_s == 0 for one in taken] == [True, True, True, False, False]
        assert all(990 < one.wait_s <= 1000 for one in taken[3:]), "and what is refused costs nothing"
        assert [one.full_in_s for one in taken] == pytest.approx([1000, 2000, 3000, 3000, 3000], abs=10)

    adapter.run(scenario)


def test_who_waits_as_long_as_told_is_served(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        quick = bucket(rate_per_s=20, burst=1)
        assert (await here.take([quick]))[0].wait_s == 0
        (refused,) = await there.take([quick])
        assert 0 < refused.wait_s <= 0.05
        await asyncio.sleep(refused.wait_s)  # what a client does
        assert (await there.take([quick]))[0].wait_s == 0

    adapter.run(scenario)


def test_of_several_buckets_each_gives_or_none(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        wide, narrow = bucket(burst=5), bucket(burst=1)
        first = await here.take([wide, narrow])
        assert [one.wait_s for one in first] == [0, 0]
        second = await there.take([wide, narrow])
        assert [(one.wait_s > 0, one.remaining) for one in second] == [(False, 4), (True, 0)]
        assert (await there.take([wide]))[0].remaining == 3

    adapter.run(scenario)


def test_at_once_from_all_sides_no_more_than_the_burst_pass(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        shared = bucket(burst=10)
        taken = await asyncio.gather(*(state.take([shared]) for state in (here, there) * 15))
        assert sum(one.wait_s == 0 for (one,) in taken) == 10

    adapter.run(scenario)


def test_a_limit_that_was_raised_counts_at_once(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        slow = bucket(rate_per_s=1e-6, burst=1)
        quick = Bucket(name=slow.name, rate_per_s=50, burst=1)
        await here.take([slow])
        assert (await there.take([slow]))[0].wait_s > 900_000
        assert (await there.take([quick]))[0].wait_s <= 1 / 50

    adapter.run(scenario)


@given(rate_per_s=st.floats(1e-3, 1e4), burst=st.integers(1, 1000), full_in=st.floats(0, 1))
def test_a_bucket_with_room_lets_pass(rate_per_s: float, burst: int, full_in: float) -> None:
    full_in_s = full_in * burst / rate_per_s
    wait = wait_s(Bucket(name="b", rate_per_s=rate_per_s, burst=burst), full_in_s)
    assert 0 <= wait <= 1 / rate_per_s + 1e-6
    assert (wait == 0) == (full_in_s - (burst - 1) / rate_per_s <= 1e-6)


# --------------------------------------------------------------------------------------------- counts


def test_counts_are_those_of_all_replicas(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        for state in (here, there, there):
            state.count(ACME, "turns")
        there.count(ACME, "errors: many")
        here.count(OTHER, "turns")

        async def told() -> bool:
            found = await here.counts(ACME)
            return found.complete and dict(found.counts) == {"turns": 3, "errors: many": 1}

        await until(told)
        assert (await here.counts(OTHER)).counts == {"turns": 1}, "one's own at once"
        assert (await here.counts(Namespace("nobody"))).counts == {}

    adapter.run(scenario)


# --------------------------------------------------------------------------------------------- changes


def test_an_announcement_wakes_all_who_wait_for_its_channel(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        with here.changes("a") as a_here, there.changes("a") as a_there, there.changes("b") as b_there:
            await asyncio.gather(*(changes.wait(0.5) for changes in (a_here, a_there, b_there)))  # what connecting says
            waiting = [asyncio.ensure_future(changes.wait(WAIT_S)) for changes in (a_here, a_there)]
            silent = asyncio.ensure_future(b_there.wait(0.3))
            from_a_thread = threading.Thread(target=there.announce, args=("a",))
            from_a_thread.start()
            assert await asyncio.gather(*waiting) == [True, True]
            assert not await silent
            from_a_thread.join()

    adapter.run(scenario)


def test_what_is_announced_between_two_waits_is_not_missed_and_is_one(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        with here.changes("a") as changes:
            await changes.wait(0.5)
            for _ in range(3):
                here.announce("a")
            assert await changes.wait(WAIT_S)
        here.announce("a")  # to nobody

    adapter.run(scenario)


def test_announcing_never_raises_whoever_still_listens() -> None:
    state = MemoryLiveState()

    async def listen() -> None:
        with state.changes("a"):
            state.announce("a")

    asyncio.run(listen())
    state.announce("a")
    behind_nothing = RedisLiveState(RedisSettings(url="redis://127.0.0.1:1/0"))
    behind_nothing.announce("a")


# --------------------------------------------------------------------------------------------- Redis alone


@pytest.fixture
def own_settings() -> RedisSettings:
    return redis_settings()


@pytest.fixture
def server(own_settings: RedisSettings) -> Iterator[Any]:
    with redis_py.Redis.from_url(own_settings.url) as client:
        yield client


def keys_of(server: Any, chosen: RedisSettings) -> list[bytes]:
    return list(server.scan_iter(f"{chosen.prefix}*"))


async def use_everything(here: LiveState, there: LiveState) -> None:
    await here.put_chain(ACME, ["a"], chain(1))
    await here.put_inference(ACME, InferenceId("i2"), SessionId("s2"))
    await there.get_chain(ACME, ["a"])
    await there.get_session(ACME, InferenceId("i2"))
    await there.has_session(ACME, SessionId("s2"))
    await here.claim(ACME, "k", "a")
    await here.take([bucket()])
    here.count(ACME, "turns")
    await here.counts(ACME)


def test_nothing_lives_for_ever_and_everything_is_under_the_prefix(server: Any, own_settings: RedisSettings) -> None:
    async def scenario() -> None:
        before = set(server.scan_iter("*"))
        async with in_redis(own_settings) as pair:
            await use_everything(*pair)
        mine = keys_of(server, own_settings)
        assert len(mine) >= 9
        assert all(server.pttl(key) > 0 for key in mine)
        assert all(key in before or key.startswith((b"test-", b"onward")) for key in server.scan_iter("*"))

    asyncio.run(scenario())


def test_entries_live_on_while_they_are_used(server: Any, own_settings: RedisSettings) -> None:
    async def scenario() -> None:
        async with in_redis(own_settings) as (here, there):
            await use_everything(here, there)
            kinds = b"chain:", b"transcript:", b"inference:", b"session:", b"claim:"
            entries = [key for key in keys_of(server, own_settings) if any(kind in key for kind in kinds)]
            for key in entries:
                server.pexpire(key, 30_000)
        async with in_redis(own_settings) as (here, there):
            for number in (1, 2):
                await here.get_session(ACME, InferenceId(f"i{number}"))
                await here.has_session(ACME, SessionId(f"s{number}"))
            await there.get_chain(ACME, ["a"])
            await there.claim(ACME, "k", "b")
        assert all(server.pttl(key) > 60_000 for key in entries), entries

    asyncio.run(scenario())


def test_what_is_not_used_goes(server: Any, own_settings: RedisSettings) -> None:
    async def scenario() -> None:
        async with in_redis(own_settings.model_copy(update={"entry_ttl_s": 0.05})) as (here, there):
            await here.put_chain(ACME, ["a"], chain(1))

            async def gone() -> bool:
                return not any(b"chain:" in key for key in keys_of(server, own_settings))

            await until(gone)
            assert await there.get_chain(ACME, ["a"]) is None
            assert await here.get_chain(ACME, ["a"]) == chain(1), "the replica that put it has it itself"

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [b"transcript:", b"chain:"])
def test_a_chain_that_was_evicted_in_part_is_unknown(server: Any, own_settings: RedisSettings, kind: bytes) -> None:
    async def scenario() -> None:
        async with in_redis(own_settings) as (here, there):
            await here.put_chain(ACME, ["a", "a2"], chain(1))
            await here.put_chain(ACME, ["b"], chain(2))
            for key in keys_of(server, own_settings):
                if kind in key and (b"i1" in key or key.endswith(b":a")):
                    server.delete(key)
            assert await there.get_chain(ACME, ["a", "b"]) == chain(2)

    asyncio.run(scenario())


def test_who_gives_up_leaves_the_others_their_answers(own_settings: RedisSettings) -> None:
    """All share one connection, whose answers come in order."""

    async def scenario() -> None:
        async with in_redis(own_settings) as (here, there):
            for number in range(50):
                await here.put_inference(ACME, InferenceId(f"i{number}"), SessionId(f"s{number}"))
            asked = [asyncio.ensure_future(there.get_session(ACME, InferenceId(f"i{number}"))) for number in range(50)]
            await asyncio.sleep(0)
            for each in asked[::3]:
                each.cancel()
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert sum(isinstance(each, asyncio.CancelledError) for each in found) == len(asked[::3])
            assert all(each == f"s{n}" for n, each in enumerate(found) if not isinstance(each, asyncio.CancelledError))
            assert await there.get_session(ACME, InferenceId("i7")) == "s7"

    asyncio.run(scenario())


def test_foreign_values_are_unknown(server: Any, own_settings: RedisSettings) -> None:
    async def scenario() -> None:
        async with in_redis(own_settings) as (here, there):
            await here.put_chain(ACME, ["a"], chain(1))
            for key in keys_of(server, own_settings):
                if b"chain:" in key:
                    server.set(key, b"\x93not ours")
                else:
                    server.delete(key)
                    server.lpush(key, "another type")
            assert await there.get_chain(ACME, ["a"]) is None
            assert await there.get_session(ACME, InferenceId("i1")) is None
            await there.put_chain(ACME, ["b"], chain(2))
            assert await there.get_chain(ACME, ["b"]) == chain(2)
            assert here.state == there.state == "ok"

    asyncio.run(scenario())


def test_who_may_have_forgotten_says_so(server: Any, own_settings: RedisSettings) -> None:
    async def scenario() -> None:
        async with RedisLiveState(own_settings, 0.3) as here, RedisLiveState(own_settings, 0.3) as there:
            assert await here.claim(ACME, "k", "a") is None, "Redis was empty a moment ago"
            assert await there.claim(ACME, "k", "b") == "a", "but what is held is held"
            await until(sure_of(here, "a"))
            for key in keys_of(server, own_settings):
                server.delete(key)
            assert await there.claim(ACME, "k", "b") is None
            assert await here.claim(ACME, "k", "b") == "a", "its own it remembers itself"
            assert await here.claim(ACME, "k", "a") == "b", "and learns who else was told that it holds"
            await until(sure_of(there, "b"))
            async with RedisLiveState(own_settings, 0.3) as newcomer:
                assert await newcomer.claim(ACME, "k2", "a") is None, "a failover may be why it had to connect"

    asyncio.run(scenario())


def sure_of(state: LiveState, content: str) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def sure() -> bool:
        return await state.claim(ACME, "k", content) == content

    return sure


def test_a_scorer_without_a_loop_announces_too(own_settings: RedisSettings) -> None:
    async def scenario() -> None:
        async with in_redis(own_settings) as (here, _):
            with here.changes("rewards") as changes:
                await changes.wait(0.5)
                announcer = await asyncio.to_thread(RedisAnnouncer, own_settings)
                announcer.announce("rewards")
                await asyncio.to_thread(announcer.close)
                assert await changes.wait(WAIT_S)

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1:port", "redis://127.0.0.1/0?colour=red"])
def test_an_address_that_is_none_names_the_setting(url: str) -> None:
    for adapter in (RedisLiveState, RedisAnnouncer):
        with pytest.raises(ConfigError, match=r"redis\.url"):
            adapter(RedisSettings(url=url))
