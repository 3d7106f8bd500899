"""`onward evals run` against the API: cases are asked and checked, and nothing is learned from them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from api_harness import MODEL, Service, serve, wait_for
from sandboxed import require_bubblewrap
from shown_examples import WORKED, commands, of_test
from task_folders import base_of, small_base, write_task
from worked import calling

from core.errors import ConfigError
from core.events import PolicyVersion
from onward.cli import app
from onward.replays.evals import run
from serving.evals.cases import load_suite

HELLO = """
[[case]]
name = "{name}"
prompt = "hello"
checker = {{ kind = "{kind}", {how} }}
max_tokens = 8
"""
LIMITS = (60.0, 4, False)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service") as service:
        yield service


def write(directory: Path, **checkers: tuple[str, str]) -> Path:
    directory.mkdir(exist_ok=True)
    cases = [HELLO.format(name=name, kind=kind, how=how) for name, (kind, how) in checkers.items()]
    (directory / "cases.toml").write_text("\n".join(cases))
    return directory


def asked(capsys: pytest.CaptureFixture[str], suite: Path, service: Service, live: str | None = None) -> Any:
    target = (f"{service.url}/v1", MODEL)
    told = run(suite, target, None if live is None else (target[0], live), LIMITS, 0.05, None, as_json=True)
    return told, json.loads(capsys.readouterr().out)


def test_a_suite_is_asked_and_nothing_of_it_is_learned_from(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = write(tmp_path / "suite", greets=("exact", 'text = "hello"'), sums=("contains", 'all = ["5"]'))
    with service.store.work() as work:
        version = work.policies.allocate(START)
        fields: dict[str, Any] = {"policy": MODEL, "parent": None, "manifest": None, "weights": "w"}
        work.policies.put(PolicyVersion(version=version, digest="d1", created_at=START, **fields))
    told, found = asked(capsys, suite, service)
    assert told
    assert found["right"] == 0.5
    origin = found["provenance"]
    assert (origin["model"], origin["versions"], len(origin["commit"])) == (MODEL, ["1", "1"], 40)
    assert origin["model_digest"] == "d1", "the service says whose weights answered"
    assert origin.keys() == {"command", "commit", "model", "model_digest", "versions", "seeds"}
    assert {name: case["score"] for name, case in found["cases"].items()} == {"greets": 1.0, "sums": 0.0}
    turns = wait_for(lambda: service.all_turns() if len(service.all_turns()) == 2 else [], "both turns")
    assert [(turn.learn, turn.purpose) for turn in turns] == [(False, "side")] * 2
    assert [request.sampling.temperature for request in service.policy.requests] == [0.0, 0.0]


def test_a_case_that_cannot_run_is_told_and_is_no_success(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = write(tmp_path / "suite", greets=("exact", 'text = "hello"'), script=("command", 'argv = ["true"]'))
    target = (f"{service.url}/v1", MODEL)
    assert not run(suite, target, None, LIMITS, 0.05, None)
    told = capsys.readouterr().out
    assert "could not run: script: its checker is a command, and these are not allowed" in told
    assert "100.0%" in told
    assert run(suite, target, None, (60.0, 4, True), 0.05, None)


def test_two_are_put_side_by_side(tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    suite = write(tmp_path / "suite", **{f"case {n}": ("exact", 'text = "hello"') for n in range(31)})
    told, found = asked(capsys, suite, service, MODEL)
    assert (told, found["action"]) == (True, "pass")
    told, found = asked(capsys, write(suite, one=("exact", 'text = "hello"')), service, MODEL)
    assert (told, found["action"]) == (False, "hold")
    assert found["live_provenance"]["versions"] == found["provenance"]["versions"] == ["1", "1"]
    target = (f"{service.url}/v1", MODEL)
    assert not run(suite, target, ("http://127.0.0.1:9/v1", MODEL), LIMITS, 0.05, None)
    words = capsys.readouterr().out
    assert words.startswith(
        "hold: no case ran on both sides: live: one: http://127.0.0.1:9/v1/chat/completions: Connect"
    )
    assert "\ncould not run: live: one: " in words


def test_the_documented_suite_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "evals.md").read_text()
    asked, worked_on = (block.split("```")[0] for block in text.split("```toml")[1:3])
    write_task(tmp_path / "tasks" / "one-helper")
    (tmp_path / "cases.toml").write_text(asked + worked_on)
    assert [case.group for case in load_suite(tmp_path).cases] == ["all", "formats", "repairs"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--margin", "0"], "--margin: want more than 0 and less than 1"),
        (["--margin", "nan"], "--margin: want more than 0"),
        (["--budget-s", "-1"], "--budget-s: want more than 0"),
        (["--concurrency", "0"], "--concurrency: want 1 or more"),
        ([], r"suite: no case files \(\*\.toml\)"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        app(["evals", "run", str(tmp_path / "suite"), "--url", "http://127.0.0.1:9/v1", "--model", "m", *arguments])


def test_the_exit_code_says_whether_all_is_well(tmp_path: Path, service: Service) -> None:
    suite = write(tmp_path / "suite", greets=("exact", 'text = "hello"'))
    arguments = ["evals", "run", str(suite), "--url", f"{service.url}/v1", "--model", MODEL]
    for more, code in (([], 0), (["--live-model", MODEL], 1)):
        with pytest.raises(SystemExit) as ended:
            app([*arguments, *more])
        assert ended.value.code == code


CALC = """\
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value
"""
CALLS = "from calc import clamp\n\n\ndef percent(value):\n    return clamp(value, 0, 100)\n"
COPIES = CALC.replace("clamp", "percent").replace("value", "share").replace("low", "least").replace("high", "most")
JUDGES = """\
#!/bin/sh
if grep -q "def percent" percent.py; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""


def test_a_task_is_worked_on_with_tools_and_a_copy_of_a_helper_loses(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    require_bubblewrap()
    small_base(tmp_path)
    suite = tmp_path / "suite"
    dockerfile = "FROM base\nWORKDIR /app\nCOPY calc.py ./\n"
    write_task(suite / "percent", tests=JUDGES, dockerfile=dockerfile, files={"environment/calc.py": CALC})
    (suite / "cases.toml").write_text(
        '[[case]]\nname = "percent"\ntask = "percent"\nmax_tokens = 400\n'
        "quality = { duplicates = true, most_added_lines = 8 }\n"
    )
    service.policy.context_length = 50_000
    url, kept = f"{service.url}/v1", str(tmp_path / "kept")
    places = {"TASKS": suite, "onward": MODEL, "http://127.0.0.1:8000/v1": url}
    places |= {"python:3.*-slim*=machine": f"*={base_of(tmp_path)}"}
    (shown,) = commands(of_test(WORKED, "docs/evals.md"), places)

    def worked(content: str) -> dict[str, Any]:
        write = ("write", {"path": "percent.py", "content": content})
        service.policy.scripts.extend([calling(write), calling(("done", {}))])
        with pytest.raises(SystemExit, match="0"):
            app([*shown[1:], "--json", "--images", kept])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["cases"]["percent"]
        return found

    right = worked(CALLS)
    assert (right["score"], right["calls"], right["ending"], right["right"]) == (1.0, 2, "done", True), right
    assert right["tokens"] > 0
    copied = worked(COPIES)
    assert (copied["score"], copied["reward"]) == (0.0, 1.0), "its tests are content"
    assert copied["why"] == "percent.py:1 (percent) says again what calc.py:1 (clamp) says"
    assert worked(CALLS + "\n" * 4)["why"] == "it adds 9 lines, and 8 are allowed"
    turns = wait_for(lambda: service.all_turns() if len(service.all_turns()) == 6 else [], "all turns")
    assert {(turn.learn, turn.purpose, turn.environment) for turn in turns} == {(False, "side", "simulated")}
    service.policy.default = calling(("done", {}))
    with pytest.raises(SystemExit, match="1"):
        app([*shown[1:], "--json", "--images", kept, "--live-model", MODEL])
    both = json.loads(capsys.readouterr().out)
    assert {name: (task["calls"], task["right"]) for name, task in both["tasks"].items()} == {
        "candidate: percent": (1, False),
        "live: percent": (1, False),
    }
    assert both["live_provenance"]["versions"] == ["1", "1"]
    with pytest.raises(SystemExit, match="0"):
        app([*shown[1:], "--images", kept])
    told = capsys.readouterr().out
    assert "worked on: percent: 1 calls, " in told
    assert "wrong: percent: its tests give 0, less than 1 (the work ended: done)" in told
    assert not run(suite, (url, MODEL), None, LIMITS, 0.05, None)
    told = capsys.readouterr().out
    assert "could not run: percent: it is a task, which runs commands, and these are not allowed" in told
