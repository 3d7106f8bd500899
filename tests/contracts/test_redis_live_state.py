"""Behaviour of live state in Redis beyond the contract of test_live_state.py."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from hypothesis import given
from hypothesis import strategies as st
from live_states import ACME, WAIT_S, bucket, chain, hears, in_redis, redis_settings, until

from api.live_state.redis_announcer import RedisAnnouncer
from api.live_state.redis_live_state import RedisLiveState, pack, unpack
from core.errors import ConfigError
from core.ids import InferenceId, SessionId
from core.ports import LiveState
from core.settings import RedisSettings

UNSURE_S = 3600.0  # longer than any machine stands still: that so long has passed, the test says
TOKEN_IDS = st.lists(st.integers(0, (1 << 32) - 1)).map(tuple)


@given(token_ids=TOKEN_IDS, cut=st.integers(1, 20))
def test_chains_are_packed_whole(token_ids: tuple[int, ...], cut: int) -> None:
    packed = pack(chain(1, token_ids))
    assert unpack(packed) == chain(1, token_ids)
    assert len(packed) <= 4 * len(token_ids) + 40
    assert unpack(packed[:-cut]) is None


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
        assert all(server.pttl(key) != -1 for key in mine), "each ends, or has ended meanwhile"
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
        async with RedisLiveState(own_settings, UNSURE_S) as here, RedisLiveState(own_settings, UNSURE_S) as there:
            assert await here.claim(ACME, "k", "a") is None, "Redis was empty a moment ago"
            assert await there.claim(ACME, "k", "b") == "a", "but what is held is held"
            age(server, own_settings)
            assert await here.claim(ACME, "k", "a") is None, "a failover may be why it had to connect"
            here._link._connected_s -= UNSURE_S
            assert await here.claim(ACME, "k", "a") == "a"
            there._link._connected_s -= UNSURE_S
            for key in keys_of(server, own_settings):
                server.delete(key)
            assert await there.claim(ACME, "k", "b") is None
            assert await here.claim(ACME, "k", "b") == "a", "its own it remembers itself"
            assert await here.claim(ACME, "k", "a") == "b", "and learns who else was told that it holds"
            age(server, own_settings)
            assert await there.claim(ACME, "k", "b") == "b"
            async with RedisLiveState(own_settings, UNSURE_S) as newcomer:
                assert await newcomer.claim(ACME, "k2", "a") is None

    asyncio.run(scenario())


def age(server: Any, chosen: RedisSettings) -> None:
    """Let Redis know that it has forgotten nothing for as long as one is unsure."""
    server.set(f"{chosen.prefix}unforgotten", round((time.time() - 2 * UNSURE_S) * 1000))


def test_a_scorer_without_a_loop_announces_too(own_settings: RedisSettings) -> None:
    async def scenario() -> None:
        async with in_redis(own_settings) as (here, there):
            with here.changes("rewards") as changes:
                await until(hears(here, there))
                await changes.wait(0.0)  # what connecting said
                announcer = await asyncio.to_thread(RedisAnnouncer, own_settings)
                announcer.announce("rewards")
                await asyncio.to_thread(announcer.close)
                assert await changes.wait(WAIT_S)

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1/0?colour=red"])
def test_an_address_that_is_none_names_the_setting(url: str) -> None:
    for adapter in (RedisLiveState, RedisAnnouncer):
        with pytest.raises(ConfigError, match=r"redis\.url"):
            adapter(RedisSettings(url=url))
