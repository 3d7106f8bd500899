"""The contract of every live state, in memory and in Redis.

`here` and `there` are what two API replicas hold."""

import asyncio
import threading
import time
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_states import ACME, ADAPTERS, OTHER, WAIT_S, Adapter, bucket, chain, hears, until
from services import require_services

from api.live_state.buckets import wait_s
from api.live_state.memory import MemoryLiveState
from api.live_state.redis_live_state import RedisLiveState
from core.ids import InferenceId, Namespace, SessionId
from core.ports import Bucket, CountWindow, LiveState
from core.settings import RedisSettings


@pytest.fixture(params=ADAPTERS, scope="module")
def adapter(request: pytest.FixtureRequest) -> Adapter:
    if request.param == "redis":
        require_services()
    return ADAPTERS[request.param]


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
        assert await there.claim_of(ACME, "k") == "a"
        assert await there.claim_of(ACME, "unclaimed") is None
        assert await there.claim(ACME, "unclaimed", "c") == "c", "to look is not to claim"
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


def test_a_burst_passes_and_then_as_many_as_the_rate(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        slow, began_s = bucket(), time.time()
        taken = [(await state.take([slow]))[0] for state in (here, there, here, there, here)]
        assert [one.remaining for one in taken] == [2, 1, 0, 0, 0]
        assert [one.wait_s == 0 for one in taken] == [True, True, True, False, False]
        passed_s = time.time() - began_s + 1  # which the bucket has filled since, but for a second of the clocks'
        assert all(1000 - passed_s < one.wait_s <= 1000 for one in taken[3:]), "and what is refused costs nothing"
        for one, at_first in zip(taken, [1000, 2000, 3000, 3000, 3000], strict=True):
            assert at_first - passed_s < one.full_in_s < at_first + 1

    adapter.run(scenario)


def test_who_waits_as_long_as_told_is_served(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        quick = bucket(rate_per_s=4, burst=1)
        (refused,) = await here.take([quick])
        assert refused.wait_s == 0
        while not refused.wait_s:  # who comes a quarter of a second later, on a busy machine, is served
            (refused,) = await there.take([quick])
        assert 0 < refused.wait_s <= 0.25
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
            for teller, listener in ((here, there), (there, here)):
                await until(hears(listener, teller))
            for changes in (a_here, a_there, b_there):
                await changes.wait(0.0)  # what connecting said
            waiting = [asyncio.ensure_future(changes.wait(WAIT_S)) for changes in (a_here, a_there)]
            from_a_thread = threading.Thread(target=there.announce, args=("a",))
            from_a_thread.start()
            assert await asyncio.gather(*waiting) == [True, True]
            from_a_thread.join()
            assert not await b_there.wait(0.3)

    adapter.run(scenario)


def test_what_is_announced_between_two_waits_is_not_missed_and_is_one(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        with here.changes("a") as changes:
            await until(hears(here, there))
            await changes.wait(0.0)
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


# --------------------------------------------------------------------------------------------- windows


def test_what_replicas_spend_in_a_window_is_one_sum(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        name = uuid.uuid4().hex
        had = [await each.spend([CountWindow(name=name, add=5)], 60) for each in (here, there, here)]
        assert had == [[0], [5], [10]]

    adapter.run(scenario)


def test_nothing_is_added_anywhere_where_one_window_would_pass_its_limit(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        tight, wide = uuid.uuid4().hex, uuid.uuid4().hex
        both = [CountWindow(name=tight, add=1, limit=2), CountWindow(name=wide, add=1, limit=9)]
        had = [await each.spend(both, 60) for each in (here, there, here, there)]
        assert had == [[0, 0], [1, 1], [2, 2], [2, 2]]
        left = [CountWindow(name=tight, add=0, limit=3), CountWindow(name=wide, add=0, limit=2)]
        assert await here.spend([*left, CountWindow(name=wide, add=4)], 60) == [2, 2, 2]
        assert await here.spend([CountWindow(name=wide, add=0)], 60) == [2]
        assert await here.spend([left[0], CountWindow(name=wide, add=4)], 60) == [2, 2]
        assert await there.spend([CountWindow(name=wide, add=0)], 60) == [6]

    adapter.run(scenario)


def test_of_many_at_once_as_many_as_may_get_in(adapter: Adapter) -> None:
    async def scenario(here: LiveState, there: LiveState) -> None:
        window = CountWindow(name=uuid.uuid4().hex, add=1, limit=10)
        had = await asyncio.gather(*((here, there)[n % 2].spend([window], 60) for n in range(30)))
        assert sorted(each[0] for each in had if each[0] < 10) == list(range(10))

    adapter.run(scenario)
