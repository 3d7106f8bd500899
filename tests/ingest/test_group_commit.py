"""Items that wait together are committed together, and no item waits for ever."""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.errors import LogUnavailable
from ingest.group_commit import GroupCommit


def test_what_arrives_during_one_commit_shares_the_next() -> None:
    batches: list[list[int]] = []
    entered, proceed = threading.Event(), threading.Event()

    def apply(items: Sequence[int]) -> Sequence[int]:
        batches.append(list(items))
        entered.set()
        assert proceed.wait(120)
        return [item * 10 for item in items]

    async def main() -> list[int]:
        first = commits.submit(0)
        await asyncio.to_thread(entered.wait, 120)
        rest = [commits.submit(item) for item in range(1, 8)]
        proceed.set()
        return list(await asyncio.gather(first, *rest))

    commits = GroupCommit[int, int]("test", apply, max_items=5)
    assert asyncio.run(main()) == [item * 10 for item in range(8)]
    assert batches == [[0], [1, 2, 3, 4, 5], [6, 7]]
    commits.close()


def test_what_one_turn_of_a_loop_submits_is_handed_over_together() -> None:
    batches: list[list[int]] = []

    def apply(items: Sequence[int]) -> Sequence[int]:
        batches.append(list(items))
        return items

    async def main() -> list[int]:
        waiting = []
        for item in range(6):
            waiting.append(commits.submit(item))
            time.sleep(0.01)  # noqa: ASYNC251 - the thread has time to take one alone
        return list(await asyncio.gather(*waiting))

    commits = GroupCommit[int, int]("test", apply, max_items=4)
    assert asyncio.run(main()) == list(range(6))
    assert batches == [[0, 1, 2, 3], [4, 5]]
    commits.close()


def test_each_item_has_its_own_result_and_a_batch_fails_whole() -> None:
    def apply(items: Sequence[str]) -> Sequence[str | Exception]:
        if "disk" in items:
            raise OSError("full")
        return [KeyError(item) if item == "bad" else item for item in items]

    commits = GroupCommit[str, str]("test", apply, max_items=5)
    assert commits.submit_blocking("good") == "good"
    with pytest.raises(KeyError):
        commits.submit_blocking("bad")
    with pytest.raises(OSError, match="full"):
        commits.submit_blocking("disk")
    assert commits.submit_blocking("good") == "good"
    commits.close()


def test_closing_finishes_what_was_submitted() -> None:
    done: list[int] = []

    def apply(items: Sequence[int]) -> Sequence[None]:
        done.extend(items)
        return [None] * len(items)

    async def main() -> None:
        for item in range(20):
            commits.submit(item)
        await asyncio.to_thread(commits.close)

    commits = GroupCommit[int, None]("test", apply, max_items=3)
    asyncio.run(main())
    assert done == list(range(20))
    with pytest.raises(LogUnavailable, match="test is closed"):
        commits.submit_blocking(1)


def test_a_loop_that_is_gone_does_not_disturb_the_others() -> None:
    proceed = threading.Event()

    def apply(items: Sequence[int]) -> Sequence[int]:
        assert proceed.wait(120)
        return items

    async def leave() -> None:
        commits.submit(1)

    commits = GroupCommit[int, int]("test", apply, max_items=3)
    asyncio.run(leave())
    proceed.set()
    assert commits.submit_blocking(2) == 2
    commits.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_ends_it_and_nobody_waits_for_ever() -> None:
    def apply(items: Sequence[int]) -> Sequence[int]:
        return [1 // item for item in items]

    commits = GroupCommit[int, int]("test", apply, max_items=3)
    with pytest.raises(LogUnavailable, match="broke down"):
        commits.submit_blocking(0)
    with pytest.raises(LogUnavailable, match="closed"):
        commits.submit_blocking(1)
    commits.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_refuses_what_waits_behind_it() -> None:
    applying, going_on = threading.Event(), threading.Event()

    def apply(items: Sequence[int]) -> Sequence[int]:
        applying.set()
        assert going_on.wait(120)
        return [1 // item for item in items]

    commits = GroupCommit[int, int]("test", apply, max_items=1)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(commits.submit_blocking, 0)
        assert applying.wait(120)
        behind = threads.submit(commits.submit_blocking, 1)
        while commits._queue.empty():
            time.sleep(0.001)
        going_on.set()
        for waiting in (first, behind):
            with pytest.raises(LogUnavailable, match="broke down"):
                waiting.result(120)
    commits.close()
