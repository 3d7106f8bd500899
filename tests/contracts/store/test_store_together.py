"""The store's contract for concurrent users, run over each database.

On SQLite writers wait for each other; on Postgres they wait only where they must, and these tests would fail or hang
where they do not."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import made_events
import pytest
from stores import database

from core.errors import Conflict, Fenced
from core.events import Completion, Release, Topic
from core.ids import Namespace, PolicyRef, base_ref
from core.ports import Store, TopicPartition

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
DEFAULT = Namespace("default")
FIRST, SECOND = TopicPartition(Topic.TURNS, 0), TopicPartition(Topic.TURNS, 1)
_WAIT_S = 120.0


@pytest.fixture
def on_server(tmp_path: Path) -> Iterator[Store]:
    with database("postgres", tmp_path) as home:
        store = home.open()
        yield store
        store.close()


def at_once(count: int, do: Callable[[int], object]) -> list[object]:
    """Run `do(0)`, `do(1)`, ... at the same time, each on a thread."""
    start = threading.Barrier(count)

    def run(number: int) -> object:
        start.wait()
        return do(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


# --------------------------------------------------------------------------------------------- numbers and histories


def test_versions_are_given_once_and_leave_none_out(store: Store) -> None:
    def allocate(_: int) -> list[PolicyRef]:
        mine = []
        for attempt in range(10):
            with suppress(ZeroDivisionError), store.work() as work:
                version = work.policies.allocate(NOW)
                if attempt % 3 == 2:
                    raise ZeroDivisionError  # and it is as if it had not been given
                mine.append(version)
        return mine

    given = [version for mine in at_once(4, allocate) for version in mine]  # type: ignore[attr-defined]
    assert sorted(given) == [base_ref(number) for number in range(1, 29)]


def test_there_is_one_first_version(store: Store) -> None:
    def start(_: int) -> PolicyRef:
        with store.work() as work:
            return work.policies.allocate_anchor(NOW)

    assert at_once(4, start) == [base_ref(1)] * 4
    with store.work() as work:
        assert work.policies.allocate(NOW) == base_ref(2)
        assert work.policies.allocate_anchor(NOW) == base_ref(1)


def test_who_pages_by_sequence_misses_no_reward(store: Store) -> None:
    """If numbers were drawn in one order and committed in another, a reader would skip the later commit."""
    done = threading.Event()

    def follow() -> list[str]:
        seen: list[str] = []
        after = 0
        while True:
            last = done.is_set()
            with store.look() as view:
                page = view.rewards.after(DEFAULT, after, 1000)
            seen += [item.inference_id for _, item in page]
            after = page[-1][0] if page else after
            if last and not page:
                return seen

    def emit(number: int) -> None:
        for step in range(30):
            with store.work() as work:
                pair = [(number, made_events.reward(f"{number}-{step}-{part}")) for part in range(2)]
                work.rewards.put(pair)

    with ThreadPoolExecutor(1) as threads:
        seen = threads.submit(follow)
        try:
            at_once(4, emit)
        finally:
            done.set()
        found = seen.result(_WAIT_S)
    assert len(found) == len(set(found)) == 4 * 30 * 2
    with store.look() as view:
        sequences = [sequence for sequence, _ in view.rewards.after(DEFAULT, 0, 1000)]
    assert sequences == list(range(1, 241))


def test_releases_are_written_upon_what_was_read(store: Store) -> None:
    """Writers compare and swap, as the chain of releases does."""

    def decide(number: int) -> int:
        written = 0
        for _ in range(10):
            with store.look() as view:
                known = view.releases.last_sequence()
            with suppress(Conflict), store.work() as work:
                work.releases.lock()
                if work.releases.last_sequence() != known:
                    raise Conflict("it has grown")
                step = Release(version=base_ref(1), cluster="local", state="live", why=str(known), by="gate", at=NOW)
                work.releases.put(step)
                written += 1
        return written

    written = sum(at_once(4, decide))  # type: ignore[arg-type]
    with store.look() as view:
        chain = view.releases.after(0, 1000)
    assert len(chain) == written >= 10
    upon = [int(step.why) for _, step in chain]
    assert upon == [0, *(sequence for sequence, _ in chain[:-1])], "each upon the one before"


def test_a_free_lease_goes_to_one(store: Store) -> None:
    for epoch in range(1, 6):
        now = NOW + timedelta(hours=epoch)

        def acquire(number: int, now: datetime = now) -> int | None:
            with store.work() as work:
                return work.leases.acquire("l", f"host {number} at {now}", now, 60)

        assert sorted(filter(None, at_once(4, acquire))) == [epoch]  # type: ignore[type-var]


# --------------------------------------------------------------------------------------------- owners of partitions


def test_the_owner_that_came_last_is_the_owner(store: Store) -> None:
    epochs = at_once(4, lambda _: take_over(store))
    assert sorted(epochs) == [1, 2, 3, 4]  # type: ignore[type-var]
    for epoch in (1, 2, 3):
        with pytest.raises(Fenced), store.work() as work:
            work.offsets.advance("g", {FIRST: 1}, {FIRST: epoch})
    with store.work() as work:
        work.offsets.advance("g", {FIRST: 1}, {FIRST: 4})


def take_over(store: Store) -> int:
    with store.work() as work:
        return work.offsets.take_over("g", [FIRST, SECOND])[FIRST][0]


def test_an_owner_that_pauses_in_its_transaction_is_waited_for(store: Store) -> None:
    """The owner was valid when it began, so its write counts, and the next owner sees it."""
    with store.work() as work:
        work.offsets.take_over("g", [FIRST])
    with ThreadPoolExecutor(1) as threads:
        with store.work() as work:
            work.offsets.fence("g", {FIRST: 1})
            following = threads.submit(first_offset, store)
            assert_waits(following)
            work.offsets.advance("g", {FIRST: 7}, {FIRST: 1})
        assert following.result(_WAIT_S) == (2, 7)
    with pytest.raises(Fenced), store.work() as work:
        work.offsets.advance("g", {FIRST: 8}, {FIRST: 1})


def test_a_zombie_that_pauses_while_it_takes_over_does_not_pass_the_rightful_owner(store: Store) -> None:
    """The zombie was the owner when it asked the log, and then slept: whoever comes later has the later epoch."""
    with ThreadPoolExecutor(1) as threads:
        with store.work() as work:
            assert work.offsets.take_over("g", [FIRST])[FIRST] == (1, None)
            following = threads.submit(first_offset, store)
            assert_waits(following)
        assert following.result(_WAIT_S) == (2, None)


def test_a_zombie_that_the_log_refuses_leaves_no_trace(store: Store) -> None:
    with store.work() as work:
        work.offsets.take_over("g", [FIRST])
    with suppress(Fenced), store.work() as work:
        work.offsets.take_over("g", [FIRST])
        raise Fenced("so says the log")
    with store.work() as work:
        work.offsets.advance("g", {FIRST: 1}, {FIRST: 1})


def first_offset(store: Store) -> tuple[int, int | None]:
    with store.work() as work:
        return work.offsets.take_over("g", [FIRST])[FIRST]


def assert_waits(following: "Future[tuple[int, int | None]]") -> None:
    """Assert that the other transaction is still waiting.

    Slowness is no proof, but without the lock it would be done within this time."""
    with pytest.raises(TimeoutError):
        following.result(0.3)


# --------------------------------------------------------------------------------------------- who need not wait


def test_on_a_server_owners_of_different_partitions_do_not_wait_for_each_other(
    on_server: Store, completion: Callable[..., Completion]
) -> None:
    with on_server.work() as work:
        work.offsets.take_over("g", [FIRST, SECOND])
        work.policies.allocate(NOW)

    def work_on_the_second() -> bool:
        with on_server.work() as work:
            work.offsets.advance("g", {SECOND: 1}, {SECOND: 1})
            work.turns.put([completion()])
            work.rewards.put([(1, made_events.reward("a"))])
            work.policies.allocate(NOW)
            release = Release(version=base_ref(1), cluster="local", state="live", why="", by="gate", at=NOW)
            work.releases.put(release)
            work.leases.acquire("l", "host", NOW, 1.0)
        return True

    with ThreadPoolExecutor(1) as threads, on_server.work() as work:
        work.offsets.advance("g", {FIRST: 1}, {FIRST: 1})
        work.turns.put([completion()])
        assert threads.submit(work_on_the_second).result(_WAIT_S)


def test_rows_in_common_in_another_order_are_no_deadlock(store: Store, completion: Callable[..., Completion]) -> None:
    """Each transaction locks them in one order, whatever order it was given."""
    turn = [completion() for _ in range(1000)]

    def write(number: int) -> int:
        order = slice(None, None, 1 if number % 2 else -1)
        with store.work() as work:
            new = work.turns.put(turn[order])
            work.offsets.take_over("g", [TopicPartition(Topic.TURNS, part) for part in range(20)][order])
        return new

    assert sum(at_once(4, write)) == 1000  # type: ignore[arg-type]
