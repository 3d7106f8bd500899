"""Where commands write what they found: a name that ends in .csv is a table's, or refused."""

import csv
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App
from kept_world import COUNT, append, past
from logged_world import anchor_probe, make_reward

from core.errors import ConfigError
from core.events import Completion, Topic
from onward.cli import app
from onward.directory.layout import SHIPPED_REWARDS
from onward.replays.exports.reports import report_file
from onward.wiring.foundation import open_foundation
from serving.releases import ensure_anchor

TABLES = {
    "export": ("--as", "turns"),
    "ope": (),
    "rescore": ("--spec", str(SHIPPED_REWARDS)),
}
OTHERS = {"replay": "want a folder", "suite mine": "want a folder", "audit export": "lines of JSON"}


def commands(of: App, words: str = "") -> Iterator[str]:
    """Yield the commands that have `--out`, below this one too."""
    arguments = () if of.default_command is None else of.assemble_argument_collection()
    if any("--out" in each.names for each in arguments):
        yield words.strip()
    for name in of:
        if not name.startswith("-"):
            yield from commands(of[name], f"{words} {name}")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Log turns with rewards."""
    directory = tmp_path_factory.mktemp("out") / "service"
    events = past(COUNT)
    append(directory, events)
    turns = [event for event in events if isinstance(event, Completion)]
    with closing(open_foundation(directory)) as made:
        ensure_anchor(made.store, made.log, made.weights, made.blobs, made.model, "tiny", "local", anchor_probe)
        made.log.append_blocking(Topic.REWARDS, [make_reward(turn, n % 2) for n, turn in enumerate(turns)])
    return directory


def run(command: str, directory: Path, out: Path, *options: str) -> None:
    with suppress(SystemExit):  # of `ope`, whose exit code says that so few turns tell nothing
        app([*command.split(), str(directory), "--out", str(out), *options], result_action="return_value")


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_command_with_out_writes_a_table_or_says_what_else() -> None:
    assert sorted(commands(app)) == sorted([*TABLES, *OTHERS])


@pytest.mark.parametrize("command", TABLES)
def test_a_csv_is_a_table_with_the_report_beside_it(service: Path, tmp_path: Path, command: str) -> None:
    table, beside = tmp_path / "one.csv", tmp_path / "one.csv.json"
    run(command, service, table, *TABLES[command])
    report, rows = json.loads(beside.read_text()), rows_of(table)
    told: dict[str, Any] = report.get("provenance", report)
    assert told["versions"] == ["1", "1"]
    for each in rows:
        assert None not in each, "a row has more cells than there are columns"
    if command == "ope":
        (live,) = rows
        (judged,) = report["candidates"]
        assert (live["candidate"], live["digest"], live["gain"]) == ("version 1", judged["digest"], "")
        assert live["refused"] == judged["refused"] != ""
    if command == "rescore":
        whole = report["comparisons"][0]
        assert [each["spec"] for each in rows] == ["in force", "new"] * len(report["comparisons"])
        assert [float(each["mean"]) for each in rows[:2]] == [whole["old"]["mean"], whole["new"]["mean"]]
        assert json.loads(rows[0]["components"]) == whole["old"]["components"]
    with pytest.raises(ConfigError, match=r"one\.csv: it is there already"):
        run(command, service, table, *TABLES[command])
    table.unlink()
    with pytest.raises(ConfigError, match=r"one\.csv\.json: it is there already"):
        run(command, service, table, *TABLES[command])
    assert not table.exists(), "what was refused wrote nothing"


@pytest.mark.parametrize("command", OTHERS)
def test_a_csv_is_refused_where_no_table_is_written(service: Path, tmp_path: Path, command: str) -> None:
    with pytest.raises(ConfigError, match=rf"--out .*one\.CSV: .*{OTHERS[command]}"):
        run(command, service, tmp_path / "one.CSV")
    assert list(tmp_path.iterdir()) == []


def test_a_table_runs_nothing_and_what_fails_leaves_nothing(tmp_path: Path) -> None:
    with report_file(tmp_path / "new" / "one.csv") as write:
        write({"all": 1}, [{"name": "=1+1", "less": None, "parts": {"a": 1}}])
    assert rows_of(tmp_path / "new" / "one.csv") == [{"name": "'=1+1", "less": "", "parts": '{"a": 1}'}]
    with pytest.raises(ConfigError, match="no turns"), report_file(tmp_path / "new" / "other.csv"):
        raise ConfigError("no turns")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["one.csv", "one.csv.json"]
