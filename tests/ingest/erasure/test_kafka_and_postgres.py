"""Erasure on a real Kafka, which cannot be rewritten, and a real Postgres, whose files are read byte by byte."""

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import made_events
import psycopg
import pytest
from at_rest import bytes_there, files_below
from kafka import KafkaConsumer
from kafka_world import open_log, read, topics_of_our_own
from services import require_services
from stepping import step
from stores import database
from waiting import wait_for

from core.clock import ManualClock, SystemClock
from core.errors import LogUnavailable
from core.events import Completion, Event, Outcome, Topic
from core.ids import Namespace, SessionId, UserHash, base_ref
from core.operations.erasures import ERASED, Erasure, is_erased
from core.settings import IngestSettings, KafkaSettings, PostgresSettings
from core.store import SqlStore, open_postgres
from ingest.erasure.eraser import Eraser, Widening
from ingest.erasure.in_keys import InKeys
from ingest.erasure.in_log import Readers
from ingest.erasure.in_store import InStore
from ingest.erasure.statement import Signer
from ingest.kafka.clients import topic_name
from ingest.kafka.log import KafkaEventLog
from ingest.sealing import RETIRED_S, Seals, is_sealed
from ingest.writer import Writer

CANARY = "Zugspitzfeuersalamander"
ALICE, MALLORY = UserHash("alice"), UserHash("mallory")


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[PostgresSettings]:
    with database("postgres", tmp_path) as home:
        assert home.postgres is not None
        yield home.postgres


@pytest.fixture
def store(postgres: PostgresSettings) -> Iterator[SqlStore]:
    with closing(open_postgres(postgres)) as opened:
        yield opened


@pytest.fixture
def kafka() -> Iterator[KafkaSettings]:
    with topics_of_our_own(require_services().kafka) as settings:
        yield settings


def said(user: UserHash, session: str, word: str) -> list[Event]:
    turn = made_events.completion(
        SessionId(session), user_id=user, text=f"{word} {session}", messages=({"role": "user", "content": word},)
    )
    return [turn, made_events.outcome(turn, name="comment", value=f"about {word}", user_id=user)]


def raw_of_topics(settings: KafkaSettings) -> bytes:
    """Return all bytes that the broker has of the topics, as any client reads them."""
    names = [topic_name(settings, topic) for topic in Topic]
    client = KafkaConsumer(
        *names,
        bootstrap_servers=list(settings.bootstrap_servers),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=3000,
    )
    with closing(client):
        return b"".join((record.key or b"") + (record.value or b"") for record in client)


def files_of(postgres: PostgresSettings) -> bytes:
    """Return the bytes of the database's files: of tables, indices and what is stored beside them."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        row = connection.execute("SHOW data_directory").fetchone()
        oid = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
    assert row is not None
    assert oid is not None
    folder = Path(str(row[0])) / "base" / str(oid[0])
    if not os.access(folder, os.R_OK):
        pytest.skip("the server's files are another user's")
    return b"".join(map(bytes_there, files_below(folder)))


def test_kafka_has_no_word_at_any_time_and_its_records_are_shells_once_the_key_is_gone(
    kafka: KafkaSettings, store: SqlStore, postgres: PostgresSettings, tmp_path: Path
) -> None:
    clock = ManualClock(SystemClock().now() + timedelta(seconds=1))
    with closing(KafkaEventLog(kafka, Seals(store, clock))) as log:
        with closing(open_log(kafka)):  # once it is there
            pass
        events = [*said(MALLORY, "bad", CANARY), *said(ALICE, "good", "ordinary")]
        until_appended(log, events)
        writer = Writer(log, store, IngestSettings(), clock)
        while count_of(store) < 2:
            step(writer, 0.5)
        step(writer)
        assert CANARY.encode() not in raw_of_topics(kafka), "sealed from the beginning"
        assert CANARY.encode() in files_of(postgres)
        number = order(store, clock)
        eraser = Eraser(store, clock, places(log, store, clock, tmp_path), Signer(tmp_path / "key.pem"))
        assert not eraser.go_on(), "others may seal with the key yet"
        clock.advance(RETIRED_S + 0.1)
        while (found := erasure(store, number)).state != "done":
            eraser.go_on()
            step(writer, 0.2)
        writer.close()
        with closing(log.reader([Topic.TURNS])) as reader:
            left = [record.event for record in read(reader, 4)]
    bad = events[0]
    assert isinstance(bad, Completion)
    mine = [each for each in left if isinstance(each, Completion | Outcome) and each.inference_id == bad.inference_id]
    others = [each for each in left if each not in mine]
    assert [is_erased(each) for each in mine] == [True, True]
    assert sorted(map(str, others)) == sorted(map(str, events[2:])), "of others every byte is as it was"
    assert found.steps["log"].removed == {"keys": 2}, "of the session, and of the turn that alone was named"
    assert CANARY.encode() not in raw_of_topics(kafka)
    assert CANARY.encode() not in files_of(postgres)
    with store.look() as view:
        (turn,) = view.turns.of_session(Namespace("default"), SessionId("bad"))
    assert (turn.text, turn.user_id, ERASED in turn.untrainable_reasons) == ("", None, True)


def until_appended(log: KafkaEventLog, events: list[Event]) -> None:
    def is_appended() -> bool:
        try:
            log.append_blocking(Topic.TURNS, events)
        except LogUnavailable:  # it is not connected yet
            return False
        return True

    wait_for(is_appended)


def count_of(store: SqlStore) -> int:
    with store.look() as view:
        return view.turns.count()


def erasure(store: SqlStore, number: int) -> Erasure:
    with store.look() as view:
        found = view.erasures.get(number)
    assert found is not None
    return found


def places(log: KafkaEventLog, store: SqlStore, clock: ManualClock, directory: Path) -> list[object]:
    widen = Widening(store, clock)
    return [
        InKeys(log, store, clock, widen, sealed=True),
        Readers(store, ["writer"], [directory / "spool"], archives=False),
        InStore(store, store.scrub),
    ]


def order(store: SqlStore, clock: ManualClock) -> int:
    now = clock.now()
    with store.work() as work:
        asked = Erasure(
            erasure_id=0,
            namespace=Namespace("default"),
            kind="user",
            subject=MALLORY,
            why="he asked",
            by="ops",
            ordered_at=now,
            deadline_at=now,
        )
        number = work.erasures.give(asked)
        known = work.erasures.get(number)
        assert known is not None
        work.erasures.widen(known, work.sweeps.sessions_of(Namespace("default"), MALLORY, now), now)
    return number


def test_a_record_that_is_sealed_says_nothing_and_one_of_an_older_build_is_read_as_it_is(store: SqlStore) -> None:
    seals = Seals(store, ManualClock(SystemClock().now()))
    turn = said(MALLORY, "bad", CANARY)[0]
    raw = seals.seal(turn)
    assert is_sealed(raw)
    assert CANARY.encode() not in raw
    policy = made_events.policy(base_ref(2))
    plain = seals.seal(policy)
    assert not is_sealed(plain)
    assert seals.opened([raw, plain])[1] == plain
    assert CANARY.encode() in seals.opened([raw])[0]
    assert seals.opened([raw[:-1] + bytes([raw[-1] ^ 1])]) != seals.opened([raw]), "changed bytes are no event"
