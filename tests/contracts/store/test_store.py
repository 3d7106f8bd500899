"""What every store promises, run over each database."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import made_events
import pytest
from stores import KINDS, Database, database

from core.errors import ConfigError, Fenced, StoreUnavailable
from core.events import Completion, DeadLetter, Outcome, PolicyVersion, Release, ReleaseState, Reward, Topic
from core.ids import InferenceId, Namespace, OutcomeId, SessionId, Version
from core.ports import Store, TopicPartition
from core.store import dead_letters, leases, offsets, open_sqlite, policies, rewards, turns
from core.store.database.connections import from_micros, to_micros

NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
DEFAULT = Namespace("default")
OTHER = Namespace("other")


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with database(request.param, tmp_path) as home:
        yield home


@pytest.fixture
def store(home: Database) -> Iterator[Store]:
    store = home.open()
    yield store
    store.close()


def reward(inference_id: str, revision: int = 0, namespace: Namespace = DEFAULT) -> Reward:
    components = {"accepted": 0.5}
    return made_events.reward(inference_id, namespace=namespace, revision=revision, components=components)


def policy(version: Version, parent: Version | None = None) -> PolicyVersion:
    return PolicyVersion(
        version=version, policy="tiny", digest="d", parent=parent, manifest=None, weights="w", created_at=NOW
    )


def release(version: Version, state: ReleaseState) -> Release:
    return Release(version=version, cluster="local", state=state, why="because", by="gate", at=NOW)


# --------------------------------------------------------------------------------------------- transactions


def test_what_fails_leaves_nothing(store: Store, completion: Callable[..., Completion]) -> None:
    turn = completion()

    def fail() -> None:
        with store.begin() as connection:
            turns.put_turns(connection, [turn])
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail()
    with store.read() as connection:
        assert turns.get_turns(connection, [turn.inference_id]) == {}


def test_the_newest_texts_are_those_that_may_be_learned_from_one_namespace_after_the_other(
    store: Store, completion: Callable[..., Completion]
) -> None:
    def said(namespace: str, token: int, **fields: object) -> Completion:
        inference_id = InferenceId(f"{token:032x}")
        return completion(
            inference_id=inference_id, namespace=namespace, prompt_token_ids=(1,), token_ids=(token,), **fields
        )

    told = [said("busy", token) for token in range(10, 20)] + [said("quiet", token) for token in (2, 3)]
    told += [said("quiet", 30, learn=False), said("quiet", 31, finish_reason="error"), said("other", 1)]
    with store.begin() as connection:
        turns.put_turns(connection, told)
    with store.read() as connection:
        assert turns.newest_texts(connection, 0) == []
        newest = [text[-1] for text in turns.newest_texts(connection, 5)]
    assert newest == [19, 3, 1, 18, 2]


def test_what_is_committed_outlives_the_store(
    home: Database, store: Store, completion: Callable[..., Completion]
) -> None:
    turn = completion()
    with store.begin() as connection:
        turns.put_turns(connection, [turn])
    store.close()
    again = home.open()
    with again.read() as connection:
        assert turns.get_turn(connection, DEFAULT, turn.inference_id) == turn
    again.close()


def test_writers_wait_for_each_other(store: Store) -> None:
    """Each reads and then writes: without the lock from the start, one would fail or overwrite."""

    def write() -> None:
        for _ in range(20):
            with store.begin() as connection:
                policies.allocate_version(connection, NOW)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.begin() as connection:
        assert policies.allocate_version(connection, NOW) == 81


def test_a_read_is_consistent(store: Store, completion: Callable[..., Completion]) -> None:
    turn = completion()
    with store.read() as reader:
        assert turns.get_turns(reader, [turn.inference_id]) == {}
        with store.begin() as connection:
            turns.put_turns(connection, [turn])
        assert turns.get_turns(reader, [turn.inference_id]) == {}


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30))])
def test_times_survive_to_the_microsecond(zone: timezone) -> None:
    moment = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=zone)
    assert from_micros(to_micros(moment)) == moment
    assert from_micros(to_micros(NOW)) == NOW


# --------------------------------------------------------------------------------------------- subjects


def test_a_turn_is_stored_once_and_stays_as_it_was_first(store: Store, completion: Callable[..., Completion]) -> None:
    turn = completion()
    changed = completion(inference_id=turn.inference_id, session_id=turn.session_id, workload="other")
    with store.begin() as connection:
        assert turns.put_turns(connection, [turn, completion()]) == 2
        assert turns.put_turns(connection, [changed, completion()]) == 1
        assert turns.put_turns(connection, []) == 0
    with store.read() as connection:
        assert turns.get_turn(connection, DEFAULT, turn.inference_id) == turn


def test_another_namespaces_turns_are_not_found(store: Store, completion: Callable[..., Completion]) -> None:
    turn = completion(transcript_digest="x")
    with store.begin() as connection:
        turns.put_turns(connection, [turn])
    with store.read() as connection:
        assert turns.get_turn(connection, OTHER, turn.inference_id) is None
        assert turns.get_session_turns(connection, OTHER, turn.session_id) == []
        assert turns.find_transcript(connection, OTHER, ["x"]) is None
        assert turns.find_transcript(connection, DEFAULT, ["w", "x"]) == turn


def test_a_sessions_turns_come_in_order(store: Store, completion: Callable[..., Completion]) -> None:
    session = SessionId("s")
    made = [completion(session_id=session, turn_index=index) for index in (2, 0, 1)]
    with store.begin() as connection:
        turns.put_turns(connection, made)
    with store.read() as connection:
        assert [turn.turn_index for turn in turns.get_session_turns(connection, DEFAULT, session)] == [0, 1, 2]


def test_outcomes_are_found_by_what_they_speak_of(
    store: Store, completion: Callable[..., Completion], outcome: Callable[..., Outcome]
) -> None:
    turn = completion()
    first = outcome(turn)
    amended = outcome(turn, value=False, supersedes=first.outcome_id, received_at=NOW + timedelta(seconds=1))
    of_session = outcome(turn, inference_id=None, session_id=turn.session_id)
    with store.begin() as connection:
        assert turns.put_outcomes(connection, [first, amended, of_session, first]) == 3
    with store.read() as connection:
        assert turns.get_turn_outcomes(connection, [turn.inference_id]) == [first, amended]
        assert turns.get_session_outcomes(connection, DEFAULT, turn.session_id) == [of_session]
        assert turns.get_outcome(connection, DEFAULT, first.outcome_id) == (first, turns.outcome_digest(first))
        assert turns.get_outcome(connection, OTHER, first.outcome_id) is None
        assert turns.get_successor(connection, DEFAULT, first.outcome_id) == amended
        assert turns.get_successor(connection, DEFAULT, amended.outcome_id) is None


def test_an_outcomes_digest_is_of_what_was_said(
    completion: Callable[..., Completion], outcome: Callable[..., Outcome]
) -> None:
    turn = completion()
    said = outcome(turn, tags={"a": "1", "b": "2"})
    again = outcome(turn, tags={"b": "2", "a": "1"}, outcome_id=OutcomeId("x"), received_at=NOW + timedelta(hours=1))
    assert turns.outcome_digest(said) == turns.outcome_digest(again)
    assert turns.outcome_digest(said) != turns.outcome_digest(outcome(turn, value=False))


def test_rewards_leave_the_outbox_once_and_in_order(store: Store) -> None:
    made = [reward("a"), reward("b"), reward("a", 1)]
    with store.begin() as connection:
        rewards.put_rewards(connection, [(0, made[0]), (3, made[1])])
        rewards.put_rewards(connection, [])
        rewards.put_rewards(connection, [(0, made[2])])
        rewards.put_rewards(connection, [(0, made[0])])  # there already
        waiting = rewards.unpublished(connection, [3, 0], 10)
        assert [item for _, item in waiting] == made
        assert [item for _, item in rewards.unpublished(connection, [0], 1)] == made[:1]
        assert [item for _, item in rewards.unpublished(connection, [3], 10)] == made[1:2]
        assert rewards.unpublished(connection, [1], 10) == rewards.unpublished(connection, [], 10) == []
        rewards.mark_published(connection, [waiting[0][0], waiting[1][0]])
        rewards.mark_published(connection, [])
        assert [item for _, item in rewards.unpublished(connection, [0, 3], 10)] == made[2:]
        assert [item for _, item in rewards.list_rewards(connection, DEFAULT, waiting[0][0], 10)] == made[1:]
        assert rewards.list_rewards(connection, OTHER, 0, 10) == []
        assert rewards.last_sequence(connection, DEFAULT) == waiting[-1][0]
        assert rewards.last_sequence(connection, OTHER) == 0
        assert rewards.get_rewards(connection, [InferenceId("a")]) == [made[0], made[2]]


def test_what_is_published_is_marked_and_nothing_else(store: Store) -> None:
    """Scorers publish side by side: one's mark says nothing of what another made before."""
    with store.begin() as connection:
        rewards.put_rewards(connection, [(0, reward("a")), (1, reward("b")), (0, reward("c"))])
        mine = [sequence for sequence, _ in rewards.unpublished(connection, [0], 10)]
        rewards.mark_published(connection, mine)
        assert rewards.unpublished(connection, [0], 10) == []
        assert [item.inference_id for _, item in rewards.unpublished(connection, [1], 10)] == ["b"]


def test_versions_are_given_once(store: Store) -> None:
    with store.begin() as connection:
        assert [policies.allocate_version(connection, NOW) for _ in range(3)] == [1, 2, 3]
        policies.put_policy(connection, policy(Version(1)))
        policies.put_policy(connection, policy(Version(1), parent=Version(9)))  # filled already: stays
        assert policies.get_policy(connection, Version(1)) == policy(Version(1))
        assert policies.get_policy(connection, Version(2)) is None
        assert policies.list_policies(connection, 10) == [(policy(Version(1)), "candidate")]


def test_releases_tell_what_is_live(store: Store) -> None:
    steps = [
        release(Version(1), "live"),
        release(Version(2), "candidate"),
        release(Version(2), "live"),
        release(Version(2), "rolled_back"),
        release(Version(1), "live"),
    ]
    with store.begin() as connection:
        for _ in range(2):
            version = policies.allocate_version(connection, NOW)
            policies.put_policy(connection, policy(version))
        assert policies.live_version(connection, "local") is None
        for step in steps:
            policies.put_release(connection, step)
        assert policies.live_version(connection, "local") == 1
        assert policies.live_version(connection, "elsewhere") is None
        assert [state for _, state in policies.list_policies(connection, 10)] == ["rolled_back", "live"]
        listed = policies.list_releases(connection, 0, 10)
        assert [step for _, step in listed] == steps
        assert policies.list_releases(connection, listed[2][0], 1) == [listed[3]]


def test_an_owner_goes_on_where_the_last_one_stood(store: Store) -> None:
    first, second = TopicPartition(Topic.TURNS, 0), TopicPartition(Topic.TURNS, 1)
    with store.begin() as connection:
        assert offsets.take_over(connection, "g", [second, first]) == {first: (1, None), second: (1, None)}
        assert offsets.get_offsets(connection, "g") == {}
        offsets.set_offsets(connection, "g", {first: 5}, {first: 1, second: 1})
        offsets.set_offsets(connection, "g", {first: 3}, {first: 1})  # it may go back
    with store.begin() as connection:
        assert offsets.take_over(connection, "g", [first]) == {first: (2, 3)}
        assert offsets.take_over(connection, "g", [second, first]) == {first: (3, 3), second: (2, None)}
        assert offsets.take_over(connection, "g", []) == {}
        assert offsets.get_offsets(connection, "g") == {first: 3}
        assert offsets.get_offsets(connection, "other") == {}


def test_who_is_no_longer_the_owner_is_fenced(store: Store) -> None:
    first, second = TopicPartition(Topic.TURNS, 0), TopicPartition(Topic.TURNS, 1)
    with store.begin() as connection:
        offsets.take_over(connection, "g", [first, second])
        offsets.set_offsets(connection, "g", {first: 5, second: 5}, {first: 1, second: 1})
        offsets.take_over(connection, "g", [first])
    with (
        pytest.raises(Fenced, match=r"group g lost onward\.turns:0: its epoch is 2, not 1"),
        store.begin() as connection,
    ):
        offsets.set_offsets(connection, "g", {first: 9, second: 9}, {first: 1, second: 1})
    with pytest.raises(Fenced, match=r"lost onward\.turns:0"), store.begin() as connection:
        offsets.fence(connection, "other", {first: 1})
    with store.begin() as connection:
        offsets.set_offsets(connection, "g", {second: 6}, {first: 1, second: 1})
        offsets.fence(connection, "g", {first: 2, second: 1})
        assert offsets.get_offsets(connection, "g") == {first: 5, second: 6}


def test_a_place_that_a_lease_fences_needs_no_owner(store: Store) -> None:
    source = TopicPartition(Topic.RELEASES, 0)
    with store.begin() as connection:
        offsets.put_offset(connection, "outbox", source, 5)
        offsets.put_offset(connection, "outbox", source, 7)
        assert offsets.get_offsets(connection, "outbox") == {source: 7}


def test_a_lease_has_one_holder_and_each_new_one_an_epoch(store: Store) -> None:
    later = NOW + timedelta(seconds=10)
    with store.begin() as connection:
        assert leases.acquire(connection, "l", "a", NOW, 10) == 1
        assert leases.acquire(connection, "l", "b", NOW, 10) is None
        assert leases.acquire(connection, "l", "a", NOW, 10) == 1
        assert leases.acquire(connection, "l", "b", later, 10) == 2
        leases.give_back(connection, "l", 1)  # not its any more
        with pytest.raises(Fenced, match="lease l is another's: epoch 1 is over"):
            leases.fence(connection, "l", 1, later, 10)
        leases.fence(connection, "l", 2, later, 20)
        assert leases.acquire(connection, "l", "a", later + timedelta(seconds=15), 10) is None
        leases.give_back(connection, "l", 2)
        assert leases.acquire(connection, "l", "a", later, 10) == 3


def test_dead_letters_are_kept_whole_and_once(store: Store) -> None:
    letters = [
        DeadLetter(topic=Topic.TURNS, partition=0, offset=offset, reason="bad", raw=b"\xff\x00", at=NOW)
        for offset in range(3)
    ]
    with store.begin() as connection:
        assert dead_letters.put_dead_letters(connection, letters) == 3
        assert dead_letters.put_dead_letters(connection, letters[:1]) == 0
        assert dead_letters.put_dead_letters(connection, []) == 0
        assert dead_letters.list_dead_letters(connection, 2) == letters[:0:-1]


# --------------------------------------------------------------------------------------------- SQLite's own troubles


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database, although long enough to be one" * 100)
    with pytest.raises(StoreUnavailable, match=r"store\.db"):
        open_sqlite(tmp_path / "store.db")


def test_a_file_of_a_newer_build_is_refused(tmp_path: Path) -> None:
    open_sqlite(tmp_path / "store.db").close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '99'")
    connection.close()
    with pytest.raises(ConfigError, match=r"store\.db: its schema 99 is of a newer build"):
        open_sqlite(tmp_path / "store.db")


def test_a_locked_store_is_unavailable_and_then_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.store.database.sqlite._BUSY_TIMEOUT_S", 0.05)
    store = open_sqlite(tmp_path / "store.db")
    lock = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"store\.db.*locked"), store.begin():
        raise AssertionError("never reached")
    lock.execute("ROLLBACK")
    lock.close()
    with store.begin() as connection:
        assert policies.allocate_version(connection, NOW) == 1
    store.close()
