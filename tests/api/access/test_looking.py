"""What a process knows of the store follows the store: one look at a time, again after a failure, at once if wanted."""

import asyncio
import logging

import msgspec
import pytest

from api.access.looking import Looking
from core.errors import LogUnavailable, StoreUnavailable

pytestmark = pytest.mark.unit
PATIENCE_S = 60.0


class Looks(Looking):
    """Looks that fail as they are told to, and can be counted."""

    def __init__(self, every_s: float, *errors: Exception) -> None:
        super().__init__(every_s, "news come later")
        self.errors, self.done, self.under_way, self.most = list(errors), 0, 0, 0
        self.looked: asyncio.Queue[int] = asyncio.Queue()

    async def look(self) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self.errors:
            raise self.errors.pop(0)
        self.done += 1
        self.looked.put_nowait(self.done)

    async def until(self, done: int) -> None:
        while await asyncio.wait_for(self.looked.get(), PATIENCE_S) < done:
            pass


def test_after_each_failure_there_is_another_look_and_none_at_the_same_time(caplog: pytest.LogCaptureFixture) -> None:
    errors = (StoreUnavailable("gone"), LogUnavailable("gone"), msgspec.ValidationError("odd"))
    looks = Looks(0.001, *errors)

    async def follow() -> None:
        async with looks:
            await asyncio.gather(looks.until(3), *(looks.refresh() for _ in range(5)))

    with caplog.at_level(logging.WARNING):
        asyncio.run(follow())
    assert [record.getMessage() for record in caplog.records] == [f"news come later: {error}" for error in errors]
    assert looks.most == 1


def test_the_first_look_comes_before_the_context_and_a_hastened_one_before_its_time() -> None:
    looks = Looks(1000 * PATIENCE_S)

    async def follow() -> list[int]:
        async with looks:
            counts = [looks.done]
            for _ in range(2):
                looks.hasten()
                await looks.until(looks.done + 1)
                counts.append(looks.done)
        return counts

    assert asyncio.run(follow()) == [1, 2, 3]


def test_an_error_that_nobody_waits_for_is_raised() -> None:
    async def follow() -> None:
        async with Looks(0.001, ValueError("a mistake")):
            pass

    with pytest.raises(ValueError, match="a mistake"):
        asyncio.run(follow())
