"""A past is read the same from the log, from the archive, or from both in part."""

import base64
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from kept_world import ALL, COUNT, LATE, MIDDLE, START, another_model, append, archive, past

from core.errors import ConfigError
from core.events import Completion, Event, Topic
from core.operations.exclusions import Exclusion
from learner.versions.probe import probe_of_model
from onward.cli import app
from onward.commands.options import overrides_of_learner
from onward.replays.compare import compare_replays
from onward.replays.exports.raw import export_events as export
from onward.replays.history import keep_once
from onward.replays.replay import replay_log
from onward.replays.rescore import compare_specs
from onward.wiring.foundation import open_foundation
from serving.releases import ensure_anchor

EARLY = (START - timedelta(days=1)).isoformat()


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return past(COUNT)


@pytest.fixture(scope="module")
def directories(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return directories with the same past, kept in three ways."""
    root = tmp_path_factory.mktemp("kept")
    append(root / "log", events)
    append(root / "half", events[:COUNT])
    assert archive(root / "half") == {"archived": COUNT, "deleted": COUNT - 2}
    append(root / "half", events[COUNT:])
    append(root / "archive", events)
    assert archive(root / "archive") == {"archived": 2 * COUNT, "deleted": 2 * COUNT - 2}
    return {name: root / name for name in ("log", "half", "archive")}


def exported(directory: Path, out: Path, **options: Any) -> tuple[dict[str, int], list[dict[str, Any]]]:
    choice = {"begin": None, "end": None, "namespace": None, "form": None} | options
    counts = export(directory, out, overrides={}, **choice)
    return counts, [json.loads(line) for line in out.read_text().splitlines()]


# ------------------------------------------------------------------------------------------ another spec


@pytest.mark.parametrize("kept", ["log", "half", "archive"])
def test_a_spec_is_tried_on_the_past_before_anybody_adopts_it(
    directories: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: str
) -> None:
    harsh = tmp_path / "harsh.toml"
    harsh.write_text('[outcomes.rejected]\ntype = "boolean"\nweight = -1.0\ndecides = true\n')
    figures = compare_specs(directories[kept], harsh, None, None, tmp_path / "figures.json")
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
    assert figures["provenance"]["versions"] == ["1", "1"]
    (whole, *_), shown = figures["comparisons"], capsys.readouterr().out
    assert (figures["turns"], whole["old"]["turns"], whole["new"]["turns"]) == (COUNT, COUNT, COUNT // 3)
    assert (whole["only_old"], whole["new"]["mean"]) == (COUNT - COUNT // 3, -1.0)
    assert re.search(r"the same turns: .* only by the new\n", shown), "one line, however narrow"
    assert "in force" in shown
    assert "rejected" in shown


def test_a_spec_that_is_wrong_or_tried_on_nothing_says_so(directories: dict[str, Path], tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('[outcomes.accepted]\ntype = "boolean"\nwait = 3\n')
    with pytest.raises(ConfigError, match=r"spec\.toml: line 3: outcomes\.accepted\.wait"):
        compare_specs(directories["log"], spec, None, None, None)
    spec.write_text('[outcomes.accepted]\ntype = "boolean"\nweight = 1\n')
    with pytest.raises(ConfigError, match="no turns to score"):
        compare_specs(directories["log"], spec, LATE, None, None)


# ------------------------------------------------------------------------------------------ replay


@pytest.mark.parametrize("times", [(None, None), (None, MIDDLE), (MIDDLE, LATE)], ids=["all", "to", "from"])
def test_rewards_and_weights_are_the_same_wherever_the_records_are(
    directories: dict[str, Path], tmp_path: Path, times: tuple[str | None, str | None]
) -> None:
    results = {
        name: replay_log(directory, tmp_path / name, None, None, *times) for name, directory in directories.items()
    }
    expected = results["log"]
    assert expected["rewards"] == (COUNT if times == (None, None) else COUNT // 2)
    assert expected["version"] > 1
    for result in results.values():
        assert {k: v for k, v in result.items() if k != "weights"} == {
            k: v for k, v in expected.items() if k != "weights"
        }


def test_another_learner_is_tried_on_the_same_past_and_put_beside_the_first(
    directories: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A researcher does this with a week of sessions."""
    own, other = tmp_path / "own", tmp_path / "other"
    replay_log(directories["log"], own, None, None)
    replay_log(directories["log"], other, None, None, overrides={"ONWARD_LEARNER__ADVANTAGE__BASELINE": "ema"})
    report = json.loads((own / "report.json").read_text())
    assert [update["version"] for update in report["updates"]] == list(range(2, report["version"] + 1))
    assert sum(stratum["turns"] for stratum in report["strata"].values()) == COUNT
    assert (own / "report.png").stat().st_size > 1000
    assert capsys.readouterr().out == "", "that is where the command prints its JSON"

    compared = compare_replays(own, other)
    shown = capsys.readouterr().out
    assert compared["settings"] == {"advantage.baseline": ("value", "ema")}
    assert [name for name, same in compared["same"].items() if not same] == ["weights_digest"]
    assert compared["figures"]["rewards"] == (COUNT, COUNT)
    assert "learner.advantage.baseline" in shown
    with pytest.raises(ConfigError, match=r"nothing/report\.json: no such file"):
        compare_replays(own, tmp_path / "nothing")


def test_what_another_model_said_is_counted_and_teaches_nothing(tmp_path: Path) -> None:
    events = past(COUNT)
    aliens = [
        msgspec.structs.replace(e, tokenizer_digest="another") if isinstance(e, Completion) else e for e in events
    ]
    append(tmp_path / "log", aliens)
    report = replay_log(tmp_path / "log", tmp_path / "out", None, None)
    assert report["version"] == 1, "nothing was learned"
    assert report["left_out"] == {"other_tokenizer": COUNT}


def test_what_versions_of_another_model_said_is_refused_by_digest(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    append(directory, past(COUNT))
    with closing(open_foundation(directory)) as made:
        recorded = partial(probe_of_model, device="cpu")
        ensure_anchor(made.store, made.log, made.weights, made.blobs, made.model, "tiny", "local", recorded)
    other = {"ONWARD_SERVING__MODEL": str(another_model(tmp_path))}
    with pytest.raises(ConfigError, match=r"log: its turns are of versions of other weights .* than those of serving"):
        replay_log(directory, tmp_path / "refused", None, None, overrides=other)
    assert not (tmp_path / "refused").exists()
    assert replay_log(directory, tmp_path / "out", None, None)["version"] > 1


def test_another_learner_comes_from_a_file(directories: dict[str, Path], tmp_path: Path) -> None:
    file, out = tmp_path / "other.toml", tmp_path / "out"
    file.write_text(
        '[learner]\nseed = 7\nadvantage.baseline = "ema"\nlora.targets = ["q_proj"]\nadmission.late_max_age_s = 5.5\n'
    )
    app(
        ["replay", str(directories["log"]), "--out", str(out), "--learner", str(file), "--set", "learner.seed=8"],
        result_action="return_value",
    )
    learner = json.loads((out / "report.json").read_text())["learner"]
    assert (learner["seed"], learner["advantage"]["baseline"]) == (8, "ema")
    assert (learner["lora"]["targets"], learner["admission"]["late_max_age_s"]) == (["q_proj"], 5.5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[learner]\nseed = many", r"other\.toml: .*line 2"),
        ("[learner]\nspeed = 3", r"learner\.speed"),
        ("[serving]\nport = 3", r"other\.toml: \[serving\]: want \[learner\] alone"),
        ("learner = 3", r"other\.toml: want a \[learner\] section"),
    ],
)
def test_a_file_that_is_no_learner_is_refused(
    directories: dict[str, Path], tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "other.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        replay_log(directories["log"], tmp_path / "out", None, None, overrides=overrides_of_learner(file))


@pytest.mark.parametrize("times", [(None, None), (EARLY, None), (EARLY, LATE)], ids=["all", "from", "both"])
def test_a_gap_in_the_log_is_counted(tmp_path: Path, times: tuple[str | None, str | None]) -> None:
    append(tmp_path / "log", past(COUNT))
    whole = replay_log(tmp_path / "log", tmp_path / "whole", None, None, *times)
    with closing(sqlite3.connect(tmp_path / "log" / "log.db")) as connection:
        gone = "DELETE FROM records WHERE topic = ? AND partition = 0 AND record_offset IN (3, 4, 5)"
        assert connection.execute(gone, (Topic.TURNS,)).rowcount == 3
        connection.commit()
    holed = replay_log(tmp_path / "log", tmp_path / "holed", None, None, *times)
    assert (whole["missing"], holed["missing"]) == (0, 3)
    assert compare_replays(tmp_path / "whole", tmp_path / "holed")["same"]["missing"] is False


def test_some_users_are_kept_apart_to_judge_the_candidate(directories: dict[str, Path], tmp_path: Path) -> None:
    replay_log(directories["log"], tmp_path / "half", None, None, holdout=0.5)
    report = json.loads((tmp_path / "half" / "report.json").read_text())
    held = report["held_out"]
    assert 0 < held["turns"] < COUNT
    assert sum(update["turns"] for update in report["updates"]) <= COUNT - held["turns"]
    assert (report["provenance"]["versions"], report["provenance"]["seeds"]) == (["1", "1"], {"learner": 0})
    assert "users, not 30" in held["refused"]
    assert held["refused"] in held["says"]
    with pytest.raises(ConfigError, match="--holdout 1: want a share"):
        replay_log(directories["log"], tmp_path / "all", None, None, holdout=1.0)


def test_a_replay_of_chosen_turns_learns_what_a_log_of_them_alone_teaches(
    directories: dict[str, Path], events: list[Event], tmp_path: Path
) -> None:
    """What is left out is counted, and a choice that leaves nothing out changes nothing."""
    whole = replay_log(directories["log"], tmp_path / "whole", None, None)
    every = replay_log(directories["log"], tmp_path / "every", None, None, where=["workload=write", "version=1-9"])
    digests = ("rewards", "rewards_digest", "weights_digest", "left_out")
    assert [whole[name] for name in digests] == [every[name] for name in digests]

    some = replay_log(directories["log"], tmp_path / "some", None, None, where=["outcome=accepted=true"])
    kept = [number for number in range(COUNT) if number % 3]
    append(tmp_path / "alone", [event for number in kept for event in events[2 * number : 2 * number + 2]])
    alone = replay_log(tmp_path / "alone", tmp_path / "of-alone", None, None)
    assert some["left_out"] == alone["left_out"] | {"not_chosen": COUNT - len(kept)}
    assert [some[name] for name in digests[:3]] == [alone[name] for name in digests[:3]]
    assert some["weights_digest"] != whole["weights_digest"]
    excluded = Exclusion(turns=frozenset(events[2 * number].inference_id for number in range(0, COUNT, 3)))  # type: ignore[union-attr]
    append(tmp_path / "ordered", events)
    with closing(open_foundation(tmp_path / "ordered")) as service, service.store.work() as work:
        work.exclusions.add(excluded, "they lie", "shell:ada", START)
    without = replay_log(tmp_path / "ordered", tmp_path / "without", None, None)
    assert [without[name] for name in digests[:3]] == [alone[name] for name in digests[:3]]
    assert without["left_out"] == alone["left_out"] | {"excluded": COUNT - len(kept)}
    report = json.loads((tmp_path / "some" / "report.json").read_text())
    assert (report["where"], report["rewards"]) == ({"outcome": "accepted=true"}, len(kept))
    assert compare_replays(tmp_path / "whole", tmp_path / "some")["same"]["where"] is False
    with pytest.raises(ConfigError, match="none of 24 turns with a reward is chosen by --where tag=team=blue"):
        replay_log(directories["log"], tmp_path / "none", None, None, where=["tag=team=blue"])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ((LATE, EARLY), "--from .* is not before --to"),
        ((MIDDLE, MIDDLE), "--from .* is not before --to"),
        (("2026-11-21T10:00", None), r"--from 2026-11-21T10:00: a timezone is missing: write 2026-11-21T10:00:00Z"),
        ((None, "2026-11-21"), r"--to 2026-11-21: a timezone is missing: write 2026-11-21T00:00:00Z"),
        (("yesterday", None), "--from yesterday: want a time as 2026-11-21T15:00:00Z"),
        (("0001-01-01T00:00:00+14:00", None), r"--from 0001-01-01T00:00:00\+14:00: in UTC there is no such year"),
        ((None, EARLY), "no turns to replay|no records --to"),
        ((LATE, None), "no turns to replay|no records --from"),
    ],
)
def test_times_that_make_no_sense_are_refused_by_name(
    directories: dict[str, Path], tmp_path: Path, times: tuple[str | None, str | None], why: str
) -> None:
    for name in ("log", "archive"):
        with pytest.raises(ConfigError, match=why):
            replay_log(directories[name], tmp_path / f"replay-{name}", None, None, *times)
        with pytest.raises(ConfigError, match=why):
            exported(directories[name], tmp_path / f"{name}.jsonl", begin=times[0], end=times[1])
    assert list(tmp_path.iterdir()) == [], "nothing is begun"


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for read in (
        lambda: replay_log(tmp_path / "none", tmp_path / "out", None, None),
        lambda: exported(tmp_path / "none", tmp_path / "out"),
    ):
        with pytest.raises(ConfigError, match="none: no such directory"):
            read()
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ export


def test_an_export_is_the_same_wherever_the_records_are(
    directories: dict[str, Path], tmp_path: Path, events: list[Event]
) -> None:
    found = {name: exported(directory, tmp_path / f"{name}.jsonl") for name, directory in directories.items()}
    assert all(counts == {"completion": COUNT, "outcome": COUNT} for counts, _ in found.values())
    by_place = {
        name: sorted(rows, key=lambda row: (row["partition"], row["offset"])) for name, (_, rows) in found.items()
    }
    assert by_place["log"] == by_place["half"] == by_place["archive"]
    for _, rows in found.values():
        for partition in (0, 1):
            offsets = [row["offset"] for row in rows if row["partition"] == partition]
            assert offsets == list(range(len(offsets)))
    ids = {event.inference_id for event in events if hasattr(event, "token_ids")}
    turns = [row for row in by_place["log"] if row["kind"] == "completion"]
    assert {row["event"]["inference_id"] for row in turns} == {row["inference_id"] for row in turns} == ids
    assert all(row["event"]["type"] == row["kind"] for row in by_place["log"])


def test_times_and_namespaces_choose(directories: dict[str, Path], tmp_path: Path) -> None:
    for name, directory in directories.items():
        counts, rows = exported(directory, tmp_path / f"{name}-1.jsonl", begin=MIDDLE)
        assert counts == {"completion": COUNT // 2, "outcome": COUNT // 2}
        assert min(row["appended_at"][:19] for row in rows) == MIDDLE[:19]
        counts, _ = exported(directory, tmp_path / f"{name}-2.jsonl", end=MIDDLE, namespace="default")
        assert counts == {"completion": COUNT // 2, "outcome": COUNT // 2}
        with pytest.raises(ConfigError, match="no records --namespace nobody"):
            exported(directory, tmp_path / f"{name}-3.jsonl", namespace="nobody")


def test_a_directory_has_a_file_for_each_kind(directories: dict[str, Path], tmp_path: Path) -> None:
    export(directories["half"], tmp_path / "out", None, None, None, None, {})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["completion.parquet", "outcome.parquet"]
    rows = pq.read_table(tmp_path / "out" / "outcome.parquet").to_pylist()
    assert {json.loads(row["event"])["outcome_id"] for row in rows} == {f"o{number}" for number in range(COUNT)}
    assert all(row["kind"] == "outcome" and row["raw"] for row in rows)
    export(directories["half"], tmp_path / "lines", None, None, None, "jsonl", {})
    assert len((tmp_path / "lines" / "completion.jsonl").read_text().splitlines()) == COUNT


def test_records_that_do_not_decode_are_exported_raw(tmp_path: Path, events: list[Event]) -> None:
    append(tmp_path / "service", events[:4])
    with closing(sqlite3.connect(tmp_path / "service" / "log.db")) as connection:
        connection.execute("UPDATE records SET raw = ? WHERE sequence = 1", (b"\xffgarbage",))
        connection.commit()
    for number in range(2):
        counts, rows = exported(tmp_path / "service", tmp_path / f"{number}.jsonl")
        assert counts["undecodable"] == 1
        (broken,) = [row for row in rows if row["kind"] is None]
        assert base64.b64decode(broken["raw"]) == b"\xffgarbage"
        assert broken["event"] is broken["namespace"] is None
        archive(tmp_path / "service")


@pytest.mark.parametrize(
    ("make", "form", "why"),
    [
        (lambda out: out.write_text("mine"), None, "out.jsonl: it is there already"),
        (lambda out: out.mkdir(), None, "out.jsonl: it is there already"),
        (lambda out: None, "parquet", "--format parquet: --out .* ends in .jsonl"),
    ],
)
def test_what_would_be_written_over_or_is_contradictory_is_refused(
    directories: dict[str, Path], tmp_path: Path, make: Callable[[Path], object], form: str | None, why: str
) -> None:
    make(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=why):
        exported(directories["log"], tmp_path / "out.jsonl", form=form)


def test_what_an_export_that_was_killed_left_is_no_export_and_in_nobodys_way(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "out.jsonl.partial").write_text("half a line")
    assert exported(directories["log"], tmp_path / "out.jsonl")[0]["completion"] == COUNT
    (tmp_path / "all.partial").mkdir()
    (tmp_path / "all.partial" / "reward.parquet").write_text("half a file")
    export(directories["log"], tmp_path / "all", None, None, None, None, {})
    assert not list(tmp_path.rglob("reward*"))
    assert not list(tmp_path.glob("*.partial"))


# ------------------------------------------------------------------------------------------ onward archive --once


def test_it_has_something_to_do_or_says_that_it_has_not(directories: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"archive\.enabled is false and archive\.retention_days is not set"):
        keep_once(directories["log"], {})


def test_another_place_for_the_archive(tmp_path: Path, events: list[Event]) -> None:
    append(tmp_path / "service", events[:8])
    elsewhere = ALL | {"ONWARD_ARCHIVE__URL": str(tmp_path / "elsewhere")}
    keep_once(tmp_path / "service", elsewhere)
    assert len(list((tmp_path / "elsewhere").rglob("*.parquet"))) == 2
    choice = {"begin": None, "end": None, "namespace": None, "form": None}
    assert export(tmp_path / "service", tmp_path / "a.jsonl", overrides=elsewhere, **choice)["completion"] == 4
