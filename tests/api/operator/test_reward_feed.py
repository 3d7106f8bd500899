"""A stream of rewards reads the store when it is notified, and otherwise only as often as it must."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from api_harness import WAIT_S, Service, wait_for
from reward_stream import events, put

from api.operator.rewards import _PAGE_BYTES, RewardFeed
from core.ids import Namespace
from core.ports import REWARDS

MakeService = Callable[..., Service]


@contextmanager
def streaming(service: Service) -> Iterator[Iterator[str]]:
    with httpx.stream("GET", f"{service.url}/v1/rewards/stream", timeout=WAIT_S) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": open"
        yield lines


def seen(lines: Iterator[str]) -> str:
    return str(events(lines, 1)[0][1]["inference_id"])


@pytest.fixture
def polling(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    def set_to(unannounced_s: float, announced_s: float) -> None:
        monkeypatch.setattr("api.operator.rewards._POLL_S", unannounced_s)
        monkeypatch.setattr("api.operator.rewards._ANNOUNCED_POLL_S", announced_s)

    return set_to


def test_an_announcement_is_enough(make_service: MakeService, polling: Callable[[float, float], None]) -> None:
    polling(600, 600)
    service = make_service()
    with streaming(service) as lines, streaming(service) as others:
        for number in (1, 2, 3):
            put(service, number)
            service.live_state.announce(REWARDS)  # from this thread: a scorer's
            assert seen(lines) == seen(others) == f"i{number}"


def test_who_comes_late_need_not_wait(make_service: MakeService, polling: Callable[[float, float], None]) -> None:
    polling(600, 600)
    service = make_service()
    put(service, 1, 2)
    url = f"{service.url}/v1/rewards/stream?after=0"
    with streaming(service), httpx.stream("GET", url, timeout=WAIT_S) as answer:
        found = events(answer.iter_lines(), 2)
    assert [event["inference_id"] for _, event in found] == ["i1", "i2"]


def test_it_looks_often_only_while_rewards_come_unannounced(
    make_service: MakeService, polling: Callable[[float, float], None]
) -> None:
    polling(0.001, 1.0)
    service = make_service()
    with streaming(service) as lines:
        put(service, 1)
        assert seen(lines) == "i1"
        before = service.store.looks
        wait_for(lambda: service.store.looks > before + 30, "many looks")

        def slow() -> bool:
            """Return whether the stream polls slowly again after an announced reward.

            A poll may find the reward before its announcement does, so one try proves nothing."""
            number = next(numbers)
            service.live_state.announce(REWARDS)
            put(service, number)
            service.live_state.announce(REWARDS)
            assert seen(lines) == f"i{number}"
            before, began_s = service.store.looks, time.monotonic()
            for _ in range(20):  # a read each, and longer than a quick look takes
                service.get("/v1/rewards")
            return service.store.looks < before + 25 + (time.monotonic() - began_s)  # a slow look each second

        numbers = iter(range(2, 400))
        wait_for(slow, "few looks")
        put(service, 500)
        assert seen(lines) == "i500", "and what nobody announced is found all the same"
        before = service.store.looks
        wait_for(lambda: service.store.looks > before + 30, "many looks again")


def test_many_streams_cost_one_look(make_service: MakeService, polling: Callable[[float, float], None]) -> None:
    polling(600, 600)
    service = make_service()
    with ExitStack() as stack:
        streams = [stack.enter_context(streaming(service)) for _ in range(12)]
        put(service, 1)
        service.live_state.announce(REWARDS)
        assert {seen(lines) for lines in streams} == {"i1"}  # each is caught up now, and waits
        before = service.store.looks
        put(service, 2)
        service.live_state.announce(REWARDS)
        assert {seen(lines) for lines in streams} == {"i2"}
        assert service.store.looks <= before + 4, "whether there is something, and what it is"


def test_a_page_has_so_many_bytes_whatever_its_rewards_weigh(make_service: MakeService) -> None:
    service = make_service()
    put(service, *range(300), namespace="light")
    put(service, *range(300, 310), namespace="heavy", size=3 * _PAGE_BYTES)
    put(
        service, *range(310, 340), namespace="grows", size=_PAGE_BYTES // 10, character="\0"
    )  # six times as long in JSON

    async def pages(namespace: str) -> list[bytes]:
        feed = RewardFeed(service.services)
        page = await feed.page(Namespace(namespace), 0)
        found = [page.events]
        while page.is_full:
            page = await feed.page(Namespace(namespace), page.last)
            found.append(page.events)
        return found

    light, heavy, grows = (asyncio.run(pages(each)) for each in ("light", "heavy", "grows"))
    assert max(map(len, light)) <= _PAGE_BYTES
    assert sum(each.count(b"id: ") for each in light) == 300
    assert [each.count(b"id: ") for each in heavy] == [1] * 10
    assert max(map(len, grows)) <= _PAGE_BYTES
    assert sum(each.count(b"id: ") for each in grows) == 30
