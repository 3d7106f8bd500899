"""The store's contract for what users and sessions consent to, on each database."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from made_events import completion

from core.events import Completion
from core.ids import Namespace, SessionId, UserHash
from core.operations.consents import UNSAID, Consent, ConsentSubject
from core.ports import Store

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
NAMESPACE = Namespace("default")
ADA = ConsentSubject(NAMESPACE, "user", "ada")
BOB = ConsentSubject(NAMESPACE, "user", "bob")
ELSEWHERE = ConsentSubject(Namespace("elsewhere"), "user", "ada")
WITHDRAWN = UNSAID.changed(learn=False, store=None, now=NOW, by="plugin")


def put(store: Store, subject: ConsentSubject, consent: Consent, *, takes_back: bool = False) -> None:
    with store.work() as work:
        work.consents.put(subject, consent, takes_back=takes_back)


def test_what_was_said_last_stands_and_is_nobody_elses(store: Store) -> None:
    with store.look() as view:
        assert (view.consents.of([ADA]), view.consents.revision()) == ({}, 0)
    put(store, ADA, WITHDRAWN)
    again = WITHDRAWN.changed(learn=True, store=None, now=NOW + timedelta(hours=1), by="#5a1f")
    put(store, ADA, again)
    put(store, BOB, WITHDRAWN)
    with store.look() as view:
        found = view.consents.of([ADA, BOB, ELSEWHERE, ConsentSubject(NAMESPACE, "session", "ada")])
    assert found == {ADA: again, BOB: WITHDRAWN}
    assert (again.learn_since, again.changed_by) == (NOW + timedelta(hours=1), "#5a1f")


def test_changes_are_heard_in_order_each_once(store: Store) -> None:
    for subject in (ADA, BOB, ADA):
        put(store, subject, WITHDRAWN)
    with store.look() as view:
        first = view.consents.changed_since(0, 1)
        rest = view.consents.changed_since(first[0].revision, 9)
        assert view.consents.changed_since(rest[-1].revision, 9) == []
        assert [kept.subject for kept in (*first, *rest)] == [BOB, ADA]
        assert rest[-1].revision == view.consents.revision() == 3


def test_changes_at_once_each_have_a_revision_of_their_own(store: Store) -> None:
    subjects = [ConsentSubject(NAMESPACE, "user", f"u{number}") for number in range(24)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda subject: put(store, subject, WITHDRAWN), subjects))
    with store.look() as view:
        assert [kept.revision for kept in view.consents.changed_since(0, 99)] == list(range(1, 25))


def test_a_withdrawal_is_to_be_taken_back_until_that_is_noted_of_this_one(store: Store) -> None:
    put(store, ADA, WITHDRAWN, takes_back=True)
    put(store, BOB, WITHDRAWN)
    with store.look() as view:
        (first,) = view.consents.to_take_back(0, 9)
    put(store, ADA, WITHDRAWN, takes_back=True)
    for told in ([first], None):
        with store.work() as work:
            work.consents.taken_back(told or work.consents.to_take_back(0, 9))
        with store.look() as view:
            assert [kept.subject for kept in view.consents.to_take_back(0, 9)] == ([ADA] if told else [])
    assert first.subject == ADA


def test_pending_withdrawals_say_whether_their_subjects_have_turns(store: Store) -> None:
    session, quiet = ConsentSubject(NAMESPACE, "session", "s1"), ConsentSubject(NAMESPACE, "session", "ada")
    for subject in (BOB, ADA, ADA, ELSEWHERE, session, quiet):
        put(store, subject, WITHDRAWN, takes_back=True)
    with store.work() as work:
        work.turns.put([hers(1, "ada", "s1")])
        found = work.consents.to_take_back(1, 3)
        assert [kept.subject for kept in found] == [ADA, ELSEWHERE, session]
        work.consents.taken_back(found[1:2])
        assert work.consents.still_to_take_back(range(9)) == {1: False, 3: True, 5: True, 6: False}


def hers(token: int, user: str | None, session: str, at: datetime = NOW) -> Completion:
    whose = None if user is None else UserHash(user)
    return completion(SessionId(session), user_id=whose, token_ids=(token, token), received_at=at)


@pytest.mark.parametrize(
    ("subject", "taught"),
    [(ADA, [False, True, True, False]), (ConsentSubject(NAMESPACE, "session", "s1"), [False, False, True, False])],
)
def test_turns_heed_what_their_user_and_their_session_say(
    store: Store, subject: ConsentSubject, taught: Sequence[bool]
) -> None:
    turns = [hers(1, "ada", "s1"), hers(2, "bob", "s1"), hers(3, None, "s2"), hers(4, "cy", "s3")]
    turns[3] = msgspec.structs.replace(turns[3], learn=False)
    put(store, subject, WITHDRAWN)
    with store.work() as work:
        work.turns.put(turns)
        found = work.consents.heeded(work.turns.get_many(each.inference_id for each in turns))
        assert [found[each.inference_id].learn for each in turns] == taught
        texts = work.turns.newest_texts(9)
        ids = work.turns.teaching(subject, None, None, 9)
    may = [each for each, is_taught in zip(turns, taught, strict=True) if is_taught]
    assert sorted(texts) == sorted(each.prompt_token_ids + each.token_ids for each in may)
    assert ids == [each.inference_id for each, is_taught in zip(turns[:3], taught, strict=False) if not is_taught]


def test_consent_that_is_given_again_does_not_reach_back(store: Store) -> None:
    again = WITHDRAWN.changed(learn=True, store=None, now=NOW + timedelta(hours=1), by="plugin")
    before, after = hers(1, "ada", "s1"), hers(2, "ada", "s1", NOW + timedelta(hours=2))
    put(store, ADA, again)
    with store.work() as work:
        work.turns.put([before, after])
        found = work.consents.heeded(work.turns.get_many([before.inference_id, after.inference_id]))
        assert [found[each.inference_id].learn for each in (before, after)] == [False, True]
        ids = work.turns.teaching(ADA, None, None, 9)
        assert work.turns.teaching(ADA, None, ids[0], 9) == ids[1:]
        assert work.turns.teaching(ADA, None, None, 1) == ids[:1]


def test_who_withdraws_storing_withdraws_learning_with_it() -> None:
    nothing = UNSAID.changed(learn=None, store=False, now=NOW, by="plugin")
    assert (nothing.learn, nothing.store) == (False, False)
    stored = nothing.changed(learn=None, store=True, now=NOW, by="plugin")
    assert (stored.learn, stored.store, stored.learn_since) == (False, True, None)
