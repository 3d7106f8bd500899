"""An eraser that is killed before or after any of its writes goes on from there, and ends with the same statement."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import made_events
import msgspec
import pytest
from stepping import step

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.events import Reward, Topic
from core.ids import Namespace, SessionId, UserHash
from core.operations.erasures import Erasure
from core.settings import IngestSettings
from core.store import SqlStore, open_sqlite
from ingest.archive.archive import Archiver
from ingest.archive.keeper import Keeper
from ingest.erasure.eraser import Eraser, Widening
from ingest.erasure.in_archive import InArchive
from ingest.erasure.in_log import InLog, Readers
from ingest.erasure.in_store import InExports, InStore
from ingest.erasure.statement import Signer, verified
from ingest.sqlite.log import SqliteEventLog
from ingest.writer import Writer

CANARY, NAMESPACE, MALLORY = "Zugspitzfeuersalamander", Namespace("default"), UserHash("mallory")
KILLED = signal.SIGKILL


def world(directory: Path) -> tuple[SqliteEventLog, SqlStore, FsspecBlobs]:
    directory.mkdir(exist_ok=True)
    log = SqliteEventLog(directory / "log.db", 2, 0.01)
    return log, open_sqlite(directory / "store.db"), FsspecBlobs(directory / "blobs")


def lived(directory: Path) -> None:
    """Make a past of two users, written, rewarded, archived and exported; and order that one be erased."""
    clock, (log, store, blobs) = ManualClock(made_events.NOW), world(directory)
    with closing(log), closing(store):
        for number in range(6):
            is_bad = number % 3 == 0
            word, user = (CANARY, MALLORY) if is_bad else ("ordinary", UserHash("alice"))
            turn = made_events.completion(SessionId(f"s{number}"), user_id=user, text=word, received_at=clock.now())
            said = made_events.outcome(turn, name="comment", value=f"about {word}", received_at=clock.now())
            reward: Reward = made_events.reward_of(turn, 1.0, clock.now(), why=f"for {word}")
            log.append_blocking(Topic.TURNS, [turn, said])
            log.append_blocking(Topic.REWARDS, [reward])
            with store.work() as work:
                work.rewards.put([(0, reward)])
        writer = Writer(log, store, IngestSettings(), clock)
        while step(writer):
            pass
        writer.close()
        for _ in Keeper(log, Archiver(log, store, blobs, 3000), None, 60.0).round():
            pass
        clock.advance(1.0)
        asked = Erasure(
            erasure_id=0, namespace=NAMESPACE, kind="user", subject=MALLORY, why="he asked", by="ops",
            ordered_at=clock.now(), deadline_at=clock.now(),
        )  # fmt: skip
        with store.work() as work:
            sessions = work.sweeps.sessions_of(NAMESPACE, MALLORY, clock.now())
            work.exports.put("/srv/export.parquet", "events", [(NAMESPACE, sessions[0])], clock.now())
            known = work.erasures.get(work.erasures.give(asked))
            assert known is not None
            work.erasures.widen(known, sessions, clock.now())


def obey(directory: Path, *, archives: bool = True) -> Erasure:
    log, store, blobs = world(directory)
    with closing(log), closing(store):
        clock = ManualClock(made_events.NOW)
        clock.advance(2.0)
        widen = Widening(store, clock)
        places = [
            InLog(log, store, log, widen),
            Readers(store, ["writer"], [], archives=archives),
            InLog(log, store, log, widen, "log_after"),
            InArchive(blobs, store),
            InStore(store, store.scrub),
            InExports(store),
        ]
        eraser = Eraser(store, clock, places, Signer(directory / "key.pem"))
        while True:
            with store.look() as view:
                found = view.erasures.get(1)
            assert found is not None
            if found.state == "done":
                return found
            assert eraser.go_on(), found.waits_for


def die_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """Kill this process before or after one of the writes, counted from 0: two moments for each."""
    passed = iter(range(10_000))

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            for is_after in (False, True):
                result = method(*given, **named) if is_after else None
                if next(passed) == moment:
                    os.kill(os.getpid(), KILLED)
            return result

        return call

    for kind, names in (
        (SqliteEventLog, ("rewrite", "scrub")),
        (FsspecBlobs, ("put",)),
        (SqlStore, ("scrub",)),
        (Signer, ("sign",)),
    ):
        for name in names:
            monkeypatch.setattr(kind, name, dying(getattr(kind, name)))


def killed_at(directory: Path, moment: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Obey in a process of its own that dies at that moment; return whether it came to that."""
    pid = os.fork()
    if pid == 0:
        try:
            die_at(monkeypatch, moment)
            obey(directory)
            os._exit(0)
        finally:  # an error is not to be a second end of the test
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, KILLED)
    return status == KILLED


def test_killed_at_any_write_it_ends_with_the_same_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived(tmp_path / "past")
    shutil.copytree(tmp_path / "past", tmp_path / "whole")
    whole = stated(obey(tmp_path / "whole"))
    assert whole["log"]["removed"] == {"records": 6}
    assert whole["exports"]["names"] == ["/srv/export.parquet"]
    moment = 0
    while True:
        place = tmp_path / str(moment)
        shutil.copytree(tmp_path / "past", place)
        was_killed = killed_at(place, moment, monkeypatch)
        assert stated(obey(place)) == whole, moment
        assert not [p for p in place.rglob("*") if p.is_file() and CANARY.encode() in p.read_bytes()], moment
        if not was_killed:
            break
        moment += 1
    assert moment > 15, "it was to be killed often"


def stated(order: Erasure) -> dict[str, Any]:
    statement, _ = verified(order.statement or "")
    assert CANARY not in json.dumps(statement)
    places: dict[str, Any] = statement["places"]
    return places


def test_a_statement_that_was_changed_is_no_statement(tmp_path: Path) -> None:
    lived(tmp_path / "past")
    signed = obey(tmp_path / "past").statement or ""
    for wrong in (signed.replace('"sessions": 2', '"sessions": 1'), signed.replace("signature", "sign"), "{}", "no"):
        assert wrong != signed
        with pytest.raises(ValueError, match=r"the signature is not|this is no statement"):
            verified(wrong)


def test_what_a_spool_brings_after_the_end_is_erased_too(tmp_path: Path) -> None:
    lived(tmp_path / "past")
    first = obey(tmp_path / "past")
    log, store, _ = world(tmp_path / "past")
    with closing(log), closing(store):
        late = made_events.completion(SessionId("s9"), user_id=MALLORY, text=CANARY, received_at=made_events.NOW)
        log.append_blocking(Topic.TURNS, [late])
        writer = Writer(log, store, IngestSettings(), ManualClock(made_events.NOW))
        while step(writer):
            pass
        writer.close()
        with store.work() as work:
            assert work.turns.get_many([late.inference_id])[late.inference_id] == late, "nobody asks for it any more"
            for number in range(1001):  # however many orders came after it
                other = msgspec.structs.replace(first, erasure_id=0, subject=f"u{number}", sessions=(), steps={})
                work.erasures.end(work.erasures.give(other), made_events.NOW, "{}")
        Eraser(store, ManualClock(made_events.NOW), [], Signer(tmp_path / "past" / "key.pem")).look_back()
        with store.look() as view:
            waits = view.erasures.get(1)
    assert waits is not None
    assert (waits.state, waits.sessions) == ("ordered", (*first.sessions, "s9"))
    assert obey(tmp_path / "past", archives=False).state == "done"
    assert not [p for p in (tmp_path / "past").rglob("*") if p.is_file() and CANARY.encode() in p.read_bytes()]
