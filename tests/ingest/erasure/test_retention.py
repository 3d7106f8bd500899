"""What is older than its namespace keeps it goes from store, log and archive; what is younger stays to the byte."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import made_events
import pytest
from stepping import step

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.events import Completion, Outcome, Topic
from core.ids import Namespace, OutcomeId, SessionId
from core.operations.ledger import Heard
from core.settings import IngestSettings, RetentionSettings
from core.store import SqlStore, open_sqlite
from ingest.archive.archive import Archiver
from ingest.archive.keeper import Keeper
from ingest.erasure.in_archive import InArchive
from ingest.erasure.retention import Retention
from ingest.sqlite.log import SqliteEventLog
from ingest.writer import Writer

CANARY = "Zugspitzfeuersalamander"
DAY = timedelta(days=1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteEventLog]:
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    yield log
    log.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_sqlite(tmp_path / "store.db")
    yield store
    store.close()


def told(log: SqliteEventLog, store: SqlStore, blobs: FsspecBlobs, clock: ManualClock, namespace: str) -> Completion:
    """Log, store and archive a turn with a comment."""
    turn = made_events.completion(
        SessionId(f"s-{namespace}-{clock.now().timestamp()}"),
        namespace=Namespace(namespace),
        received_at=clock.now(),
        text=CANARY,
        messages=({"role": "user", "content": CANARY},),
    )
    comment = made_events.outcome(turn, namespace=turn.namespace, name="comment", value=CANARY, received_at=clock.now())
    log.append_blocking(Topic.TURNS, [turn, comment])
    writer = Writer(log, store, IngestSettings(), clock)
    while step(writer):
        pass
    writer.close()
    for _ in Keeper(log, Archiver(log, store, blobs, 3000), None, 60.0).round():
        pass
    return turn


def test_words_go_at_their_age_everywhere_and_the_rest_stays(
    log: SqliteEventLog, store: SqlStore, tmp_path: Path
) -> None:
    clock, blobs = ManualClock(made_events.NOW), FsspecBlobs(tmp_path / "blobs")
    old = told(log, store, blobs, clock, "acme")
    clock.advance(20 * DAY.total_seconds())
    young, others = (told(log, store, blobs, clock, name) for name in ("acme", "other"))
    clock.advance(20 * DAY.total_seconds())
    kept = {"acme": RetentionSettings(keep_text_days=30, keep_rewards_days=400)}
    stage = Retention(store, store.scrub, log, log, InArchive(blobs, store), clock, kept, 60.0)
    assert stage.round() == 2 + 2 + 2, "the turn and its comment, in store, log and archive"
    with store.look() as view:
        turns = view.turns.get_many([old.inference_id, young.inference_id, others.inference_id])
        (comment,) = view.outcomes.of_turns([old.inference_id])
    assert turns[young.inference_id] == young
    assert turns[others.inference_id] == others
    assert (turns[old.inference_id].text, turns[old.inference_id].num_output_tokens) == ("", len(old.token_ids))
    assert (comment.name, comment.value) == ("comment", None)
    assert stage.round() == 0, "and nothing twice"
    clock.advance(20 * DAY.total_seconds())
    stage.round()
    with store.look() as view:
        assert view.turns.get_many([young.inference_id])[young.inference_id].text == ""
    reader = log.reader([Topic.TURNS])
    left = [record.event for record in reader.poll(100, 0)]
    reader.close()
    assert [event.text for event in left if isinstance(event, Completion)] == ["", "", CANARY]
    assert [event.value for event in left if isinstance(event, Outcome)] == [None, None, CANARY]


def test_tokens_may_go_before_words(log: SqliteEventLog, store: SqlStore, tmp_path: Path) -> None:
    clock, blobs = ManualClock(made_events.NOW), FsspecBlobs(tmp_path / "blobs")
    turn = told(log, store, blobs, clock, "acme")
    clock.advance(2 * DAY.total_seconds())
    kept = {"acme": RetentionSettings(keep_tokens_days=1)}
    Retention(store, store.scrub, log, log, InArchive(blobs, store), clock, kept, 60.0).round()
    with store.look() as view:
        left = view.turns.get_many([turn.inference_id])[turn.inference_id]
    assert (left.text, left.token_ids, left.trainable) == (CANARY, (), False)


def test_feedback_that_names_no_turn_of_the_store_goes_at_its_age_too(
    log: SqliteEventLog, store: SqlStore, tmp_path: Path
) -> None:
    """Comments on sessions, and on turns that never came: in the store, and in what the scorer keeps of them."""
    clock, turn = ManualClock(made_events.NOW), made_events.completion()
    names = [f"{namespace}-{number}" for namespace in ("acme", "other") for number in range(3)]
    said = [
        made_events.outcome(
            turn,
            outcome_id=OutcomeId(name),
            inference_id=turn.inference_id if name.endswith("2") else None,
            session_id=None if name.endswith("2") else SessionId("talk"),
            namespace=Namespace(name.partition("-")[0]),
            name="comment",
            value=CANARY,
            received_at=clock.now() + (20 * DAY if name.endswith("1") else 0 * DAY),
        )
        for name in names
    ]
    with store.work() as work:
        work.outcomes.put(said)
        work.ledger.put_outcomes([(Heard(each, number), each.session_id) for number, each in enumerate(said)])
    clock.advance(40 * DAY.total_seconds())
    kept = {"acme": RetentionSettings(keep_text_days=30)}
    stage = Retention(
        store, store.scrub, log, log, InArchive(FsspecBlobs(tmp_path / "blobs"), store), clock, kept, 60.0
    )
    assert stage.round() == 2 + 2
    with store.look() as view:
        found = [view.outcomes.get(Namespace(name.partition("-")[0]), OutcomeId(name)) for name in names]
        of_talk = [each for _, each in view.ledger.outcomes(Namespace("acme"), [SessionId("talk")])]
        heard = {each.outcome.outcome_id: each.outcome.value for each in (*of_talk, *view.ledger.waiting_outcomes())}
    assert [each[0].value for each in found if each is not None] == [None, CANARY, None, CANARY, CANARY, CANARY]
    assert heard == {"acme-0": None, "acme-1": CANARY, "acme-2": None, "other-2": CANARY}
    assert stage.round() == 0, "and nothing twice"
