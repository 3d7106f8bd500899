"""The pool's own work, over sandboxes that cost nothing: turns, places and retries."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from environments.errors import InfrastructureFailure
from environments.sandboxes.pool import Pool
from environments.sandboxes.sandbox import SandboxSpec

SPEC, OTHER = SandboxSpec(), SandboxSpec(workspace=Path("/other"))


class Places:
    """Sandboxes that do nothing; the first `failures` openings fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.opened: list[SandboxSpec] = []
        self.open_now = self.most_open = 0

    async def open(self, spec: SandboxSpec) -> Any:
        self.opened.append(spec)
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise InfrastructureFailure("sandbox", "out of luck")
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        return Place(self)

    async def close(self) -> None:
        pass


class Place:
    def __init__(self, places: Places) -> None:
        self._places: Places | None = places

    async def close(self) -> None:
        if self._places is not None:
            self._places.open_now -= 1
            self._places = None


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_no_more_are_open_than_allowed_and_all_get_one() -> None:
    async def work() -> None:
        places = Places()
        pool = Pool(places, most_open=3)

        async def use() -> None:
            async with await pool.open(SPEC):
                await asyncio.sleep(0)

        await asyncio.gather(*(use() for _ in range(50)))
        assert places.most_open == 3
        assert places.open_now == 0
        assert len(places.opened) == 50

    run(work())


def test_who_came_first_is_served_first() -> None:
    async def work() -> None:
        pool = Pool(Places(), most_open=1)
        served: list[int] = []
        first = await pool.open(SPEC)

        async def use(number: int) -> None:
            async with await pool.open(SPEC):
                served.append(number)

        waiting = [asyncio.create_task(use(number)) for number in range(5)]
        await asyncio.sleep(0)
        await first.close()
        await asyncio.gather(*waiting)
        assert served == list(range(5))

    run(work())


def test_who_waits_too_long_holds_no_place() -> None:
    async def work() -> None:
        places = Places()
        pool = Pool(places, most_open=1)
        held = await pool.open(SPEC)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await pool.open(SPEC)
        await held.close()
        await held.close()
        for _ in range(3):
            await (await asyncio.wait_for(pool.open(SPEC), 120)).close()
        assert places.most_open == 1

    run(work())


def test_a_caller_who_goes_away_gives_his_turn_to_the_next() -> None:
    async def work() -> None:
        pool = Pool(Places(), most_open=1)
        held = await pool.open(SPEC)
        gone = asyncio.create_task(pool.open(SPEC))
        next_one = asyncio.create_task(pool.open(SPEC))
        await asyncio.sleep(0)
        await held.close()
        gone.cancel()
        await (await asyncio.wait_for(next_one, 120)).close()
        await asyncio.gather(gone, return_exceptions=True)
        await (await asyncio.wait_for(pool.open(SPEC), 120)).close()

    run(work())


def test_an_opening_that_fails_is_tried_again_three_times_in_all() -> None:
    async def work() -> None:
        lucky = Places(failures=2)
        await (await Pool(lucky, most_open=1).open(SPEC)).close()
        assert len(lucky.opened) == 3
        unlucky = Places(failures=6)
        pool = Pool(unlucky, most_open=1)
        for _ in range(2):
            with pytest.raises(InfrastructureFailure, match="out of luck"):
                await pool.open(SPEC)
        await (await asyncio.wait_for(pool.open(SPEC), 120)).close()  # its place was given back

    run(work())


def test_closing_refuses_those_who_wait_and_closes_the_rest() -> None:
    async def work() -> None:
        places = Places()
        pool = Pool(places, most_open=1)
        await pool.open(SPEC)
        waiting = asyncio.create_task(pool.open(SPEC))
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(InfrastructureFailure, match="closed"):
            await waiting
        with pytest.raises(InfrastructureFailure, match="closed"):
            await pool.open(SPEC)
        assert places.open_now == 0

    run(work())


def test_what_opens_while_the_pool_closes_is_closed_too() -> None:
    async def work() -> None:
        places = Places()
        pool = Pool(places, most_open=5)
        opening = asyncio.create_task(pool.open(SPEC))
        pool.expect(OTHER)
        await asyncio.sleep(0)
        assert places.opened == [SPEC, OTHER]
        assert places.open_now == 0, "they are being opened"
        await pool.close()
        with pytest.raises(InfrastructureFailure, match="closed"):
            await opening
        assert places.open_now == 0

    run(work())


def test_an_expected_one_is_made_before_it_is_asked_for_and_once() -> None:
    async def work() -> None:
        places = Places()
        pool = Pool(places, most_open=5)
        pool.expect(SPEC)
        pool.expect(SPEC)
        while places.open_now < 1:  # noqa: ASYNC110 - what is made ahead tells nobody
            await asyncio.sleep(0)
        taken = await pool.open(SPEC)
        assert places.opened == [SPEC]
        await pool.open(SPEC)
        assert places.opened == [SPEC] * 2
        await taken.close()
        pool.expect(OTHER)
        await pool.open(OTHER)  # which waits for the one that is being made
        assert places.opened == [SPEC, SPEC, OTHER]
        await pool.close()
        assert places.open_now == 0

    run(work())


def test_too_many_expected_are_closed_the_oldest_first() -> None:
    async def work() -> None:
        places = Places()
        pool = Pool(places, most_open=5, most_expected=2)
        specs = [SandboxSpec(workspace=Path(f"/{number}")) for number in range(4)]
        for spec in specs:
            pool.expect(spec)
            for _ in range(5):
                await asyncio.sleep(0)
        assert places.open_now == 2
        await pool.open(specs[3])
        assert places.opened == specs
        await pool.close()
        assert places.open_now == 0

    run(work())


def test_an_expected_one_that_fails_is_made_anew_by_who_asks() -> None:
    async def work() -> None:
        places = Places(failures=1)
        pool = Pool(places, most_open=1)
        pool.expect(SPEC)
        await (await pool.open(SPEC)).close()
        assert places.opened == [SPEC] * 2
        await pool.close()

    run(work())


def test_who_goes_away_leaves_no_expected_one_behind() -> None:
    async def work() -> None:
        places = Places()
        pool = Pool(places, most_open=1)
        pool.expect(SPEC)
        gone = asyncio.create_task(pool.open(SPEC))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert places.open_now == 0
        await (await asyncio.wait_for(pool.open(SPEC), 120)).close()
        await pool.close()

    run(work())
