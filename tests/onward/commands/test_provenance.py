"""Every report says where it comes from: who made it, how it was asked to, and what it is of."""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from api_harness import MODEL as SERVED
from api_harness import serve
from cyclopts import App
from kept_world import append, past
from logged_world import MODEL, anchor_probe, make_reward
from PIL import Image
from scripted_service import serving

from core.events import Completion, Topic
from core.provenance import lowest_and_highest, made_by
from environments.fidelity import __main__ as fidelity
from environments.fidelity.places import Replayed
from environments.rollouts.reporting.page import page_of
from onward.cli import app
from onward.commands import demo
from onward.directory.layout import SHIPPED_REWARDS
from onward.wiring.foundation import open_foundation
from serving.releases import ensure_anchor
from simulator import __main__ as users
from simulator import report as users_report
from simulator.functions import __main__ as functions
from simulator.tasks.corpus import write_corpus

ROOT = Path(__file__).resolve().parents[3]
STATES = {
    "alarms": "what stands now",
    "audit export": "the trail, which has digests of its own",
    "audit verify": "what stands in the trail",
    "dead-letters list": "what stands now",
    "exclude": "what an order would change, or changes",
    "fleet": "what stands now",
    "keys list": "what stands now",
    "policies": "what stands now",
    "rewards tail": "each reward as it comes, with its spec",
    "suite review": "files that wait for a person",
}
"""Commands that show how things stand, and draw no conclusion that somebody could cite, each with what it shows."""
KEYS = {"command", "commit"}
WHOLE = KEYS | {"model", "model_digest", "versions", "seeds"}


class World(NamedTuple):
    service: Path
    folder: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def run(self, *words: object) -> Any:
        """Run a command of the program, and return what it printed as JSON; None where that is no JSON."""
        self.monkeypatch.setattr(sys, "argv", ["onward", *map(str, words)])
        with suppress(SystemExit):
            app(list(map(str, words)), result_action="return_value")
        printed = self.capsys.readouterr().out
        with suppress(ValueError):
            return json.loads(printed)

    def out(self, *words: object, name: str = "out.json") -> Any:
        self.run(*words, "--out", self.folder / name)
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="module")
def past_service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a service with a past."""
    directory = tmp_path_factory.mktemp("provenance") / "service"
    events = past(24)
    append(directory, events)
    turns = [event for event in events if isinstance(event, Completion)]
    with closing(open_foundation(directory)) as made:
        ensure_anchor(made.store, made.log, made.weights, made.blobs, made.model, "tiny", "local", anchor_probe)
        made.log.append_blocking(Topic.REWARDS, [make_reward(turn, n % 2) for n, turn in enumerate(turns)])
    return directory


@pytest.fixture
def world(
    past_service: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> World:
    return World(past_service, tmp_path, capsys, monkeypatch)


def suite_of(world: World) -> Path:
    (world.folder / "suite").mkdir()
    case = '[[case]]\nname = "greets"\nprompt = "hello"\nmax_tokens = 8\nchecker = { kind = "exact", text = "hello" }\n'
    (world.folder / "suite" / "cases.toml").write_text(case)
    return world.folder / "suite"


def of_replay(world: World) -> Any:
    world.run("replay", world.service, "--out", world.folder / "replay")
    report = json.loads((world.folder / "replay" / "report.json").read_text())
    assert in_picture(world.folder / "replay" / "report.png") == report["provenance"]
    return report


def of_compare(world: World) -> Any:
    same = dict.fromkeys(("from", "to", "missing", "spec", "holdout", "rewards_digest", "weights_digest", "rewards"), 0)
    report = {
        **same,
        "learner": {},
        "updates": [],
        "strata": {},
        "where": {},
        "held_out": None,
        "provenance": {"commit": "a"},
    }
    (world.folder / "report.json").write_text(json.dumps(report))
    told = world.run("compare", world.folder, world.folder, "--json")
    assert told["provenance"]["replays"] == [{"commit": "a"}] * 2
    return told


def of_evals(world: World) -> Any:
    suite = suite_of(world)
    with serve(world.folder / "served") as service:
        return world.run("evals", "run", suite, "--url", f"{service.url}/v1", "--model", SERVED, "--json")


def of_export(world: World) -> Any:
    world.run("export", world.service, "--as", "turns", "--out", world.folder / "turns.csv")
    return {"provenance": json.loads((world.folder / "turns.csv.json").read_text())}


def of_propose(world: World) -> Any:
    replay = of_replay(world)
    shutil.copytree(world.service, world.folder / "service")
    told = world.run("propose", world.folder / "replay", world.folder / "service", "--json")
    assert told["provenance"]["replay"] == replay["provenance"]
    return told


def of_midtrain(world: World) -> Any:
    write_corpus(world.folder / "corpus", 16, seed=3)
    options = ("--init", MODEL, "--steps", 1, "--rows", 2)
    world.run("midtrain", world.folder / "corpus", world.folder / "trained", *options)
    return json.loads((world.folder / "trained" / "report.json").read_text())


def of_users(world: World, program: Any, *options: str) -> Any:
    """Return the report of simulated users, as their program writes it, where `onward demo` started it."""
    world.monkeypatch.setattr(users_report, "SETTLE_S", 0.0)
    with serving() as service:
        words = ["--url", service.url, "--output", str(world.folder), "--seed", "3", "--command", "onward demo"]
        world.monkeypatch.setattr(sys, "argv", ["simulator", *words, *options])
        with pytest.raises(SystemExit):
            program.main()
    report = json.loads((world.folder / "report.json").read_text())
    assert report["provenance"]["command"] == "onward demo"
    assert report["provenance"]["seeds"] == {"users": 3}
    assert (report["provenance"]["model"], report["provenance"]["model_digest"]) == ("tiny", "one")
    return report


def of_demo(world: World) -> Any:
    report = of_users(world, users, "--seconds", "0.3", "--rate", "40")
    assert in_picture(world.folder / "curves.png") == report["provenance"]
    return report


def of_functions(world: World) -> Any:
    return of_users(world, functions, "--seconds", "0.1", "--examined", "2", "--users", "1")


def of_fidelity(world: World) -> Any:
    async def replayed(*_: object) -> Replayed:
        return Replayed([], {}, {9, 12, 2})

    world.monkeypatch.setattr(fidelity, "replay_all", replayed)
    words = ["http://127.0.0.1:9/v1", "--workspace", str(world.folder), "--key", "a-secret-key"]
    words += ["--out", str(world.folder / "report.json")]
    world.monkeypatch.setattr(sys, "argv", ["fidelity", *words])
    with suppress(SystemExit):
        fidelity.app(words)
    report = json.loads((world.folder / "report.json").read_text())
    assert report["provenance"]["versions"] == ["2", "12"]
    assert " --key *** " in report["provenance"]["command"]
    return report


def of_rollouts(_: World) -> Any:
    page = page_of([], Counter(), 0, "Rollouts", {**made_by(""), "command": 'onward "1" <b>'}, "tiny")
    (told,) = re.findall(r'<meta name="onward" content="([^"]*)">', page)
    return {"provenance": json.loads(unescape(told))}


REPORTS: dict[str, Callable[[World], Any]] = {
    "compare": of_compare,
    "demo": of_demo,
    "evals check": lambda world: world.run("evals", "check", suite_of(world), "--sessions", world.service, "--json"),
    "evals run": of_evals,
    "export": of_export,
    "judge agreement": lambda world: world.run("judge", "agreement", world.service, "--json"),
    "midtrain": of_midtrain,
    "ope": lambda world: world.out("ope", world.service),
    "propose": of_propose,
    "replay": of_replay,
    "rescore": lambda world: world.out("rescore", world.service, "--spec", SHIPPED_REWARDS),
    "rollouts": of_rollouts,
    "suite mine": lambda world: world.run("suite", "mine", world.service, "--out", world.folder / "drafts"),
    "python -m environments.fidelity": of_fidelity,
    "python -m simulator": of_demo,
    "python -m simulator.functions": of_functions,
}
"""The commands whose figures somebody may cite, each with what makes its report."""
LEARNS = {"propose", "replay"}
"""Those that learn of a past first, which takes a while."""
ELSEWHERE = {"midtrain", "rollouts"}
"""Those whose report has a place of its own, which no option names."""


def commands(of: App, words: str = "") -> Iterator[str]:
    """Yield the commands that write a file or print JSON, below this one too."""
    arguments = () if of.default_command is None else of.assemble_argument_collection()
    if {"--out", "--output", "--json"} & {name for each in arguments for name in each.names}:
        yield words.strip()
    for name in of:
        if not name.startswith("-"):
            yield from commands(of[name], f"{words} {name}")


def programs() -> Iterator[str]:
    """Yield the other programs that write a file."""
    for top in ("environments", "simulator"):
        for path in sorted((ROOT / top).rglob("__main__.py")):
            if re.search(r'"--output"|\bout: |json', path.read_text()):
                yield f"python -m {'.'.join(path.relative_to(ROOT).parts[:-1])}"


def in_picture(path: Path) -> Any:
    with Image.open(path) as picture:
        return json.loads(picture.text["onward"])  # type: ignore[attr-defined]


def test_each_command_that_writes_or_prints_figures_makes_a_report_or_shows_a_state() -> None:
    """Whoever adds one says here what makes its report, and so that it says where it comes from."""
    assert sorted({*commands(app), *programs()} | ELSEWHERE) == sorted({**STATES, **REPORTS})


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=pytest.mark.deep) if name in LEARNS else name for name in REPORTS if name != "demo"],
)
def test_a_report_says_where_it_comes_from(command: str, world: World) -> None:
    told = REPORTS[command](world)["provenance"]
    assert told.keys() >= (KEYS if command in ("compare", "propose") else WHOLE), "compare, propose: of the replays"
    assert told["commit"] == made_by("")["commit"], "of this checkout"
    assert told["command"].startswith(("onward", "python -m"))


def test_the_demo_says_how_it_was_asked_to(world: World) -> None:
    """Its users are another program, whose report it is, and whose own command is not what anybody typed."""
    started: list[list[str]] = []

    class Ended(NamedTuple):
        returncode: int = 0

    class Running:
        def __enter__(self) -> list[str]:
            return ["http://127.0.0.1:9"]

        def __exit__(self, *_: object) -> None: ...

    world.monkeypatch.setattr(demo, "running_service", lambda *_: Running())
    world.monkeypatch.setattr(demo, "made_by", lambda: {"command": "onward demo --seed 5"})
    world.monkeypatch.setattr(demo.subprocess, "run", lambda command, **_: started.append(command) or Ended())
    world.run("demo", "--output", world.folder, "--seed", 5)
    (command,) = started
    assert command[command.index("--command") + 1] == "onward demo --seed 5"


def test_versions_are_in_the_order_of_their_numbers() -> None:
    assert lowest_and_highest([10, 9, 2]) == ["2", "10"]
    assert lowest_and_highest(["acme@10", "acme@9"]) == ["acme@9", "acme@10"]
    assert lowest_and_highest([]) is None
