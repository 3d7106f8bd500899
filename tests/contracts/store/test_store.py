"""The contract of every store, run over each database."""

import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import made_events
import pytest
from sqlalchemy import Engine, event
from stores import Database

from core.clock import from_micros, to_micros
from core.errors import ConfigError, Fenced, StoreUnavailable
from core.events import Completion, DeadLetter, Outcome, PolicyVersion, Release, ReleaseState, Reward, Topic
from core.ids import BASE, InferenceId, Namespace, OutcomeId, PolicyName, PolicyRef, SessionId, Version, base_ref
from core.ports import Store, TopicPartition
from core.store import open_sqlite
from core.store.outcomes import outcome_digest

NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
DEFAULT = Namespace("default")
OTHER = Namespace("other")


def reward(inference_id: str, revision: int = 0, namespace: Namespace = DEFAULT) -> Reward:
    components = {"accepted": 0.5}
    return made_events.reward(inference_id, namespace=namespace, revision=revision, components=components)


def policy(version: Version, parent: Version | None = None) -> PolicyVersion:
    return made_events.policy(version, parent=parent)


def release(version: Version, state: ReleaseState) -> Release:
    return Release(version=version, cluster="local", state=state, why="because", by="gate", at=NOW)


# --------------------------------------------------------------------------------------------- transactions


def test_what_fails_leaves_nothing(store: Store, completion: Callable[..., Completion]) -> None:
    turn = completion()

    def fail() -> None:
        with store.work() as work:
            work.turns.put([turn])
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail()
    with store.look() as view:
        assert view.turns.get_many([turn.inference_id]) == {}


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
    with store.work() as work:
        work.turns.put(told)
    with store.look() as view:
        assert view.turns.newest_texts(0) == []
        newest = [text[-1] for text in view.turns.newest_texts(5)]
    assert newest == [19, 3, 1, 18, 2]


@pytest.mark.parametrize(
    ("others", "newest"),
    [({}, [399, 398, 397, 396, 395]), ({1: "ann"}, [399, 1]), ({1: "ann", 2: "bob"}, [399, 2, 398, 1])],
    ids=["alone", "with another", "with two"],
)
def test_one_users_texts_are_no_more_of_the_newest_than_all_others_together(
    others: dict[int, str], newest: list[int], store: Store, completion: Callable[..., Completion]
) -> None:
    """Else one user would choose what each version is probed with, and so whether it may serve."""
    with store.work() as work:
        work.turns.put(
            [
                completion(
                    inference_id=InferenceId(f"{token:032x}"),
                    user_id=user,
                    namespace="strangers" if user == "mallory" else "crowd",  # namespaces take turns
                    prompt_token_ids=(1,),
                    token_ids=(token,),
                )
                for token, user in [*others.items(), *((token, "mallory") for token in range(3, 400))]
            ]
        )
    with store.look() as view:
        assert [text[-1] for text in view.turns.newest_texts(5)] == newest


def test_what_is_committed_outlives_the_store(
    home: Database, store: Store, completion: Callable[..., Completion]
) -> None:
    turn = completion()
    with store.work() as work:
        work.turns.put([turn])
    store.close()
    again = home.open()
    with again.look() as view:
        assert view.turns.get(DEFAULT, turn.inference_id) == turn
    again.close()


def test_writers_wait_for_each_other(store: Store) -> None:
    """Each reads and then writes: without the lock from the start, one would fail or overwrite."""

    def write() -> None:
        for _ in range(20):
            with store.work() as work:
                work.policies.allocate(NOW)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.work() as work:
        assert work.policies.allocate(NOW) == base_ref(81)


def test_a_read_is_consistent(store: Store, completion: Callable[..., Completion]) -> None:
    turn = completion()
    with store.look() as reader:
        assert reader.turns.get_many([turn.inference_id]) == {}
        with store.work() as work:
            work.turns.put([turn])
        assert reader.turns.get_many([turn.inference_id]) == {}


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30))])
def test_times_survive_to_the_microsecond(zone: timezone) -> None:
    moment = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=zone)
    assert from_micros(to_micros(moment)) == moment
    assert from_micros(to_micros(NOW)) == NOW


# --------------------------------------------------------------------------------------------- subjects


def test_a_turn_is_stored_once_and_stays_as_it_was_first(store: Store, completion: Callable[..., Completion]) -> None:
    turn = completion()
    changed = completion(inference_id=turn.inference_id, session_id=turn.session_id, workload="other")
    with store.work() as work:
        assert work.turns.put([turn, completion()]) == 2
        assert work.turns.put([changed, completion()]) == 1
        assert work.turns.put([]) == 0
    with store.look() as view:
        assert view.turns.get(DEFAULT, turn.inference_id) == turn


def test_another_namespaces_turns_are_not_found(store: Store, completion: Callable[..., Completion]) -> None:
    turn = completion(transcript_digest="x")
    with store.work() as work:
        work.turns.put([turn])
    with store.look() as view:
        assert view.turns.get(OTHER, turn.inference_id) is None
        assert view.turns.of_session(OTHER, turn.session_id) == []
        assert view.turns.find_transcript(OTHER, ["x"]) is None
        assert view.turns.find_transcript(DEFAULT, ["w", "x"]) == turn


def test_a_sessions_turns_come_in_order(store: Store, completion: Callable[..., Completion]) -> None:
    session = SessionId("s")
    made = [completion(session_id=session, turn_index=index) for index in (2, 0, 1)]
    with store.work() as work:
        work.turns.put(made)
    with store.look() as view:
        assert [turn.turn_index for turn in view.turns.of_session(DEFAULT, session)] == [0, 1, 2]
        assert view.turns.newest_of_session(DEFAULT, session, 3, 1 << 20) == ([made[1], made[2], made[0]], True)
        assert view.turns.newest_of_session(DEFAULT, session, 2, 1 << 20) == ([made[1], made[2]], False)
        assert view.turns.newest_of_session(DEFAULT, session, 3, 1) == ([made[2]], False)


def test_outcomes_are_found_by_what_they_speak_of(
    store: Store, completion: Callable[..., Completion], outcome: Callable[..., Outcome]
) -> None:
    turn = completion()
    first = outcome(turn)
    amended = outcome(turn, value=False, supersedes=first.outcome_id, received_at=NOW + timedelta(seconds=1))
    of_session = outcome(turn, inference_id=None, session_id=turn.session_id)
    of_others = outcome(turn, namespace=OTHER)
    with store.work() as work:
        work.turns.put([turn])
        assert work.outcomes.put([first, amended, of_session, first, of_others]) == 4
    with store.look() as view:
        assert view.outcomes.of_turns([turn.inference_id]) == [first, amended]
        for most, most_bytes, newest in ((2, 1 << 20, [first, amended]), (1, 1 << 20, [amended]), (2, 1, [amended])):
            bounds = most, most_bytes
            assert view.outcomes.newest_of_turns(DEFAULT, [turn.inference_id], *bounds) == newest
            assert view.outcomes.newest_of_session(DEFAULT, turn.session_id, *bounds) == [of_session]
        assert view.outcomes.of_session(DEFAULT, turn.session_id) == [of_session]
        assert view.outcomes.get(DEFAULT, first.outcome_id) == (first, outcome_digest(first))
        assert view.outcomes.get(OTHER, first.outcome_id) is None
        assert view.outcomes.successor(DEFAULT, first.outcome_id) == amended
        assert view.outcomes.successor(DEFAULT, amended.outcome_id) is None
    withdrawn = outcome(turn, value=None, supersedes=first.outcome_id, withdrawn=True)
    later = outcome(turn, value=True, supersedes=first.outcome_id, received_at=NOW + timedelta(hours=1))
    with store.work() as work:
        work.outcomes.put([withdrawn, later])
    with store.look() as view:
        assert view.outcomes.successor(DEFAULT, first.outcome_id) == withdrawn


def test_a_withdrawal_is_found_before_any_number_of_amendments_by_one_query(
    store: Store, completion: Callable[..., Completion], outcome: Callable[..., Outcome]
) -> None:
    turn = completion()
    ids = [OutcomeId(f"said-{number}") for number in range(2000)]
    chain = [
        outcome(turn, outcome_id=each, supersedes=before) for each, before in zip(ids, [None, *ids[:-1]], strict=True)
    ]
    circle = [outcome(turn, outcome_id=OutcomeId(each), supersedes=OutcomeId(other)) for each, other in ("ab", "ba")]
    withdrawn = outcome(turn, value=None, supersedes=ids[0], withdrawn=True)
    with store.work() as work:
        work.outcomes.put([*chain, *circle, outcome(turn, namespace=OTHER, supersedes=ids[1], withdrawn=True)])
    with store.look() as view:
        found = [view.outcomes.withdrawal_before(DEFAULT, each) for each in (ids[0], ids[-1], circle[0].outcome_id)]
        assert found == [None] * 3
    with store.work() as work:
        work.outcomes.put([withdrawn])
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    with store.look() as view:
        assert view.outcomes.withdrawal_before(DEFAULT, ids[0]) is None, "it is withdrawn itself"
        event.listen(Engine, "before_cursor_execute", note)
        try:
            assert view.outcomes.withdrawal_before(DEFAULT, ids[-1]) == withdrawn
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert [statement.split()[0] for statement in asked if statement != "BEGIN"] == ["WITH"]


def test_what_another_namespace_says_of_a_turn_is_not_heard(
    store: Store, completion: Callable[..., Completion], outcome: Callable[..., Outcome]
) -> None:
    turn, ours = completion(), completion()
    judged, theirs = outcome(ours, name="judgement"), outcome(ours, namespace=OTHER)
    with store.work() as work:
        work.turns.put([turn, ours])
        work.outcomes.put([outcome(turn, namespace=OTHER), judged, theirs])
    with store.look() as view:
        assert view.recent.heard(DEFAULT, [turn.inference_id, ours.inference_id], []) == ({ours.inference_id}, set())
        assert list(view.outcomes.of_judged_turns("judgement")) == [[judged]]


def test_an_outcomes_digest_is_of_what_was_said(
    completion: Callable[..., Completion], outcome: Callable[..., Outcome]
) -> None:
    turn = completion()
    said = outcome(turn, tags={"a": "1", "b": "2"})
    again = outcome(turn, tags={"b": "2", "a": "1"}, outcome_id=OutcomeId("x"), received_at=NOW + timedelta(hours=1))
    assert outcome_digest(said) == outcome_digest(again)
    assert outcome_digest(said) != outcome_digest(outcome(turn, value=False))


def test_rewards_leave_the_outbox_once_and_in_order(store: Store) -> None:
    made = [reward("a"), reward("b"), reward("a", 1)]
    with store.work() as work:
        work.rewards.put([(0, made[0]), (3, made[1])])
        work.rewards.put([])
        work.rewards.put([(0, made[2])])
        work.rewards.put([(0, made[0])])  # there already
        waiting = work.rewards.unpublished([3, 0], 10)
        assert [item for _, item in waiting] == made
        assert [item for _, item in work.rewards.unpublished([0], 1)] == made[:1]
        assert [item for _, item in work.rewards.unpublished([3], 10)] == made[1:2]
        assert work.rewards.unpublished([1], 10) == work.rewards.unpublished([], 10) == []
        work.rewards.mark_published([waiting[0][0], waiting[1][0]])
        work.rewards.mark_published([])
        assert [item for _, item in work.rewards.unpublished([0, 3], 10)] == made[2:]
        assert [item for _, item in work.rewards.after(DEFAULT, waiting[0][0], 10)] == made[1:]
        assert work.rewards.after(OTHER, 0, 10) == []
        assert work.rewards.last_sequence(DEFAULT) == waiting[-1][0]
        assert work.rewards.last_sequence(OTHER) == 0
        assert work.rewards.of_turns([InferenceId("a")]) == [made[0], made[2]]


def test_what_is_published_is_marked_and_nothing_else(store: Store) -> None:
    """Scorers publish side by side: one's mark does not cover what another made before."""
    with store.work() as work:
        work.rewards.put([(0, reward("a")), (1, reward("b")), (0, reward("c"))])
        mine = [sequence for sequence, _ in work.rewards.unpublished([0], 10)]
        work.rewards.mark_published(mine)
        assert work.rewards.unpublished([0], 10) == []
        assert [item.inference_id for _, item in work.rewards.unpublished([1], 10)] == ["b"]


def test_versions_are_given_once(store: Store) -> None:
    with store.work() as work:
        assert [work.policies.allocate(NOW).version for _ in range(3)] == [1, 2, 3]
        work.policies.put(policy(base_ref(1)))
        work.policies.put(policy(base_ref(1), parent=base_ref(9)))  # filled already: stays
        assert work.policies.get(base_ref(1)) == policy(base_ref(1))
        assert work.policies.get(base_ref(2)) is None
        assert work.policies.newest(10) == [(policy(base_ref(1)), "candidate")]


def test_releases_tell_what_is_live(store: Store) -> None:
    steps = [
        release(base_ref(1), "live"),
        release(base_ref(2), "candidate"),
        release(base_ref(2), "live"),
        release(base_ref(2), "rolled_back"),
        release(base_ref(1), "live"),
    ]
    with store.work() as work:
        for _ in range(2):
            version = work.policies.allocate(NOW)
            work.policies.put(policy(version))
        assert work.releases.live("local") is None
        for step in steps:
            work.releases.put(step)
        assert work.releases.live("local") == base_ref(1)
        assert work.releases.live("elsewhere") is None
        assert [state for _, state in work.policies.newest(10)] == ["rolled_back", "live"]
        listed = work.releases.after(0, 10)
        assert [step for _, step in listed] == steps
        assert work.releases.after(listed[2][0], 1) == [listed[3]]


def test_each_policy_has_its_own_versions(store: Store) -> None:
    """Versions of the same number share no key, state, parent or look-up."""
    acme = PolicyName("acme")
    ours, theirs, next_one = base_ref(1), PolicyRef(acme, Version(1)), PolicyRef(acme, Version(2))
    made = [policy(ours), policy(theirs, parent=ours), policy(next_one, parent=theirs)]
    with store.work() as work:
        assert work.policies.allocate_anchor(NOW) == ours
        assert work.policies.allocate_anchor(NOW, acme) == work.policies.first(acme) == theirs
        assert work.policies.allocate(NOW, acme) == next_one
        for each in made:
            work.policies.put(each)
        for step in (release(ours, "live"), release(theirs, "live"), release(next_one, "rejected")):
            work.releases.put(step)
        assert [work.policies.get(each.version) for each in made] == made
        assert work.policies.newest(10) == [(made[0], "live")]
        assert [version for version, _ in work.policies.newest(10, acme)] == made[:0:-1]
        assert work.policies.versions(acme) == [theirs, next_one]
        assert [work.releases.live("local", each) for each in (BASE, acme)] == [ours, theirs]
        assert work.releases.live_history("local", acme) == [theirs]
        assert work.releases.last_in_state("local", "rejected") is None
        assert work.releases.last_in_state("local", "rejected", acme) == next_one
        lineage = work.policies.states_of_lineage(next_one)
        assert lineage == [(next_one, "rejected"), (theirs, "live")], "as far as the live one"
        work.releases.put(release(theirs, "rolled_back"))
        lineage = work.policies.states_of_lineage(next_one)
        assert lineage == [(next_one, "rejected"), (theirs, "rolled_back"), (ours, "live")]
        assert work.policies.state_of(ours) == "live"
        assert work.policies.count_states(acme) == {"rejected": 1, "rolled_back": 1}
        assert work.curves.live_since(0).keys() == {ours, theirs}


def test_an_owner_goes_on_where_the_last_one_stood(store: Store) -> None:
    first, second = TopicPartition(Topic.TURNS, 0), TopicPartition(Topic.TURNS, 1)
    with store.work() as work:
        assert work.offsets.take_over("g", [second, first]) == {first: (1, None), second: (1, None)}
        assert work.offsets.of_group("g") == {}
        work.offsets.advance("g", {first: 5}, {first: 1, second: 1})
        work.offsets.advance("g", {first: 3}, {first: 1})  # it may go back
    with store.work() as work:
        assert work.offsets.take_over("g", [first]) == {first: (2, 3)}
        assert work.offsets.take_over("g", [second, first]) == {first: (3, 3), second: (2, None)}
        assert work.offsets.take_over("g", []) == {}
        assert work.offsets.of_group("g") == {first: 3}
        assert work.offsets.of_group("other") == {}


def test_who_is_no_longer_the_owner_is_fenced(store: Store) -> None:
    first, second = TopicPartition(Topic.TURNS, 0), TopicPartition(Topic.TURNS, 1)
    with store.work() as work:
        work.offsets.take_over("g", [first, second])
        work.offsets.advance("g", {first: 5, second: 5}, {first: 1, second: 1})
        work.offsets.take_over("g", [first])
    with (
        pytest.raises(Fenced, match=r"group g lost onward\.turns:0: its epoch is 2, not 1"),
        store.work() as work,
    ):
        work.offsets.advance("g", {first: 9, second: 9}, {first: 1, second: 1})
    with pytest.raises(Fenced, match=r"lost onward\.turns:0"), store.work() as work:
        work.offsets.fence("other", {first: 1})
    with store.work() as work:
        work.offsets.advance("g", {second: 6}, {first: 1, second: 1})
        work.offsets.fence("g", {first: 2, second: 1})
        assert work.offsets.of_group("g") == {first: 5, second: 6}


def test_a_place_that_a_lease_fences_needs_no_owner(store: Store) -> None:
    source = TopicPartition(Topic.RELEASES, 0)
    with store.work() as work:
        work.offsets.put("outbox", source, 5)
        work.offsets.put("outbox", source, 7)
        assert work.offsets.of_group("outbox") == {source: 7}


def test_a_lease_has_one_holder_and_each_new_one_an_epoch(store: Store) -> None:
    later = NOW + timedelta(seconds=10)
    with store.work() as work:
        assert work.leases.acquire("l", "a", NOW, 10) == 1
        assert work.leases.acquire("l", "b", NOW, 10) is None
        assert work.leases.acquire("l", "a", NOW, 10) == 1
        assert work.leases.acquire("l", "b", later, 10) == 2
        work.leases.give_back("l", 1)  # not its any more
        with pytest.raises(Fenced, match="lease l has another holder: epoch 1 is over"):
            work.leases.fence("l", 1, later, 10)
        work.leases.fence("l", 2, later, 20)
        assert work.leases.acquire("l", "a", later + timedelta(seconds=15), 10) is None
        work.leases.give_back("l", 2)
        assert work.leases.acquire("l", "a", later, 10) == 3


def test_dead_letters_are_kept_whole_and_once(store: Store) -> None:
    letters = [
        DeadLetter(topic=Topic.TURNS, partition=0, offset=offset, reason="bad", raw=b"\xff\x00", at=NOW)
        for offset in range(3)
    ]
    with store.work() as work:
        assert work.dead_letters.put(letters) == 3
        assert work.dead_letters.put(letters[:1]) == 0
        assert work.dead_letters.put([]) == 0
        assert work.dead_letters.newest(2) == letters[:0:-1]


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
    with pytest.raises(StoreUnavailable, match=r"store\.db.*locked"), store.work():
        raise AssertionError("never reached")
    lock.execute("ROLLBACK")
    lock.close()
    with store.work() as work:
        assert work.policies.allocate(NOW) == base_ref(1)
    store.close()
