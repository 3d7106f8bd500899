"""A backup of a directory, and what is restored from it; what no backup can be made of, or restored from."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import made_events
import pytest
from kept_world import append, past

from core.errors import ConfigError, OnwardError
from core.events import Release, Topic
from core.ids import base_ref
from core.records.whole_log import read_whole
from core.store.database import copies
from onward.backups import backup as backups
from onward.backups.backup import back_up
from onward.backups.folders import Vanished
from onward.backups.restore import restore
from onward.cli import app
from onward.wiring.foundation import open_foundation

TURNS = 5
COPIED = {
    "learner/journal-00000003.msgpack.zst": "an entry",
    "learner/checkpoints/3/weights": "a checkpoint",
    "spool/turns-1": "a turn that the log does not have",
    "spools/api-1/turns-1": "another",
    "rewards.toml": '[outcomes.accepted]\ntype = "boolean"\nweight = 1.0\ndecides = true\n',
}
LEFT_OUT = (
    "cache/weights/1",
    "hosts/engine-1/sglang.log",
    "apis/api-1.json",
    "ready/score.pid",
    "rollouts/journal.db",
    "ope.partial/store.db",
    "mine.partial/store.db",
    "service.lock",
)


@pytest.fixture
def service(tmp_path: Path) -> Path:
    directory = tmp_path / "service"
    append(directory, past(TURNS))
    for name, text in COPIED.items() | dict.fromkeys(LEFT_OUT, "of this moment").items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    with closing(open_foundation(directory)) as foundation:
        foundation.blobs.put("policies/1/manifest", b"a manifest")
        with foundation.store.work() as work:
            work.turns.put([made_events.completion() for _ in range(TURNS)])
            work.policies.allocate(made_events.NOW)
    return directory


def content(directory: Path) -> dict[str, Any]:
    """Return all that a service has, but for what is of one moment."""
    with closing(open_foundation(directory)) as foundation, foundation.store.read() as connection:
        records = {
            topic: [
                (record.partition, record.offset, record.appended_at, record.raw)
                for batch in read_whole(foundation.log, topic)
                for record in batch
            ]
            for topic in Topic
        }
        rows = [(table, [tuple(row) for row in found]) for table, found in copies.read_rows(connection)]
        blobs = {path: foundation.blobs.get(path) for path in foundation.blobs.list("")}
    return {"records": records, "rows": rows, "blobs": blobs} | {
        name: (directory / name).read_text() for name in COPIED
    }


def test_a_service_comes_back_as_it_was(service: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app(["backup", str(service), "--into", str(tmp_path / "backup")], result_action="return_value")
    there = content(service)
    told = json.loads(capsys.readouterr().out)
    assert told["records"] == sum(map(len, there["records"].values())) == 2 * TURNS
    assert told["rows"] == sum(len(rows) for _, rows in there["rows"]) > TURNS
    assert not (tmp_path / "backup").stat().st_mode & 0o077
    assert (service / "audit" / "head.json").exists()
    assert not list((tmp_path / "backup").rglob("head.json")), "it may be newer than the store's trail"
    shutil.rmtree(service)
    app(["restore", str(service), "--from", str(tmp_path / "backup")], result_action="return_value")
    assert json.loads(capsys.readouterr().out)["rows"] == told["rows"]
    assert not [name for name in LEFT_OUT if (service / name).exists()]
    back = content(service)
    (trail,) = (rows for table, rows in back["rows"] if table == "audit")
    assert b"onward restore" in trail.pop()[2], "which is new in the trail; the backup is in it itself"
    assert back == there
    with closing(open_foundation(service)) as foundation, foundation.store.work() as work:
        assert work.policies.allocate(made_events.NOW).version == 2, "no number is given twice"


def test_the_settings_that_are_there_stay(service: Path, tmp_path: Path) -> None:
    back_up(service, tmp_path / "backup", {})
    new = tmp_path / "new"
    new.mkdir()
    ours = (service / "onward.toml").read_text() + "\n[monitors]\nenabled = false\n"
    (new / "onward.toml").write_text(ours)
    restore(tmp_path / "backup", new, {})
    assert (new / "onward.toml").read_text() == ours
    assert (new / "rewards.toml").read_text() == COPIED["rewards.toml"]


def test_a_new_volume_takes_a_backup_and_the_notes_that_lay_beside_the_service(service: Path, tmp_path: Path) -> None:
    (service / "notes.md").write_text("mine")
    back_up(service, tmp_path / "backup", {})
    told = json.loads((tmp_path / "backup" / "backup.json").read_text())
    for name in ("onward.toml", "rewards.toml"):  # as where settings come of the environment alone
        told["files"].pop(f"directory/{name}")
        (tmp_path / "backup" / "directory" / name).unlink()
    of_another(files=told["files"])(tmp_path / "backup")
    new = tmp_path / "new"
    (new / "lost+found").mkdir(parents=True)
    restore(tmp_path / "backup", new, {"ONWARD_INGEST__PARTITIONS": "2"})
    assert (new / "notes.md").read_text() == "mine"


def test_no_backup_is_where_something_is_or_in_the_service_itself(service: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for into, why in ((tmp_path / "there", "it is there already"), (service / "backup", "the next backup")):
        with pytest.raises(ConfigError, match=why):
            back_up(service, into, {})
    with pytest.raises(ConfigError, match="no service has run in it"):
        back_up(tmp_path / "there", tmp_path / "backup", {})
    assert not (service / "backup").exists()


def test_what_changes_while_it_is_copied_is_copied_again(
    service: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([True, False])
    copy_files = backups.copy_files

    def copy(*arguments: Any) -> None:
        if next(failures, False):
            raise Vanished("learner/checkpoints/3")
        copy_files(*arguments)

    monkeypatch.setattr(backups, "copy_files", copy)
    back_up(service, tmp_path / "backup", {})
    failures = iter([True] * 100)
    with pytest.raises(OnwardError, match="changed while they were copied"):
        back_up(service, tmp_path / "another", {})
    assert not (tmp_path / "another").exists()


def test_a_backup_says_up_to_when_it_has_everything(
    service: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is logged while files are copied is not in it."""
    began, copy_files = list[datetime](), backups.copy_files

    def copy(*arguments: Any) -> None:
        began.append(datetime.now(UTC))
        copy_files(*arguments)

    monkeypatch.setattr(backups, "copy_files", copy)
    assert back_up(service, tmp_path / "backup", {}).taken_at < min(began)


def test_a_backup_without_the_weights_that_serve_is_none(service: Path, tmp_path: Path) -> None:
    live = made_events.policy(base_ref(1))
    with closing(open_foundation(service)) as foundation, foundation.store.work() as work:
        work.policies.put(live)
        work.releases.put(
            Release(version=base_ref(1), cluster="local", state="live", why="", by="gate", at=made_events.NOW)
        )
    with pytest.raises(OnwardError, match="changed while they were copied"):
        back_up(service, tmp_path / "backup", {})
    assert not (tmp_path / "backup").exists()


# ------------------------------------------------------------------------------------------ what is refused


@pytest.fixture
def made(service: Path, tmp_path: Path) -> Path:
    back_up(service, tmp_path / "backup", {})
    return tmp_path / "backup"


def spoil(backup: Path) -> None:
    (backup / "log.pieces").write_bytes((backup / "log.pieces").read_bytes() + b"!")


def lose(backup: Path) -> None:
    (backup / "blobs" / "policies" / "1" / "manifest").unlink()


def cut_off(backup: Path) -> None:
    (backup / "backup.json").unlink()


def of_another(**changes: Any) -> Callable[[Path], None]:
    def change(backup: Path) -> None:
        told = json.loads((backup / "backup.json").read_text())
        (backup / "backup.json").write_text(json.dumps(told | changes))

    return change


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (spoil, "log.pieces: its bytes are not those"),
        (lose, "manifest: missing"),
        (cut_off, "no backup, or one that did not end"),
        (of_another(schema="7"), "its store is of schema 7"),
        (of_another(format=2), "format 2"),
    ],
)
def test_what_is_no_whole_backup_of_this_build_restores_nothing(
    made: Path, tmp_path: Path, harm: Callable[[Path], None], why: str
) -> None:
    harm(made)
    with pytest.raises(ConfigError, match=why):
        restore(made, tmp_path / "new", {})
    assert not (tmp_path / "new").exists()


def test_nothing_that_is_there_is_overwritten(made: Path, service: Path) -> None:
    with pytest.raises(ConfigError, match=r"not empty, it has"):
        restore(made, service, {})


@pytest.mark.parametrize("place", ["BLOBS", "ARCHIVE__URL"])
def test_later_versions_and_files_are_not_mixed_with_those_of_the_backup(
    made: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "bucket" / "policies").mkdir(parents=True)
    (tmp_path / "bucket" / "policies" / "7").write_text("a later version")
    with pytest.raises(ConfigError, match="not empty, it has policies/7"):
        restore(made, tmp_path / "new", {f"ONWARD_{place}": str(tmp_path / "bucket")})


def test_a_log_of_other_partitions_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"ingest\.partitions: onward.turns has 3 partitions here, and 2 in the backup"
    ):
        restore(made, tmp_path / "new", {"ONWARD_INGEST__PARTITIONS": "3"})
