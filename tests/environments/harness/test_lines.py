"""The tools of the line editor, in a real sandbox; and what the model is shown with them."""

import json
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service
from worked import calling, in_sandbox, task_of, work

from environments.harness.agent import Agent, HarnessSettings
from environments.harness.execution import Executed, execute
from environments.harness.model import Call
from environments.harness.tools.offered import tools_of
from environments.harness.tools.tool import Bench
from environments.sandboxes.sandbox import Sandbox
from simulator.tasks.toolbox import TOOLS as TRAINED

TOOLS = {tool.name: tool for tool in tools_of(None, "lines")}
RIGHT = {"line": 2, "text": "    return one + other"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "add.py").write_text("def add(one, other):\n    return one - other\n")
    (root / "tests.py").write_text("from add import add\n\nassert add(2, 3) == 5\n")
    return root


def call_all(repository: Path, *calls: tuple[str, dict[str, Any]]) -> list[Executed]:
    async def use(sandbox: Sandbox) -> list[Executed]:
        bench, done = Bench(sandbox, "/workspace"), list[Executed]()
        for name, arguments in calls:
            done += (await execute([Call("call_0", name, json.dumps(arguments))], TOOLS, bench)).calls
        return done

    found: list[Executed] = in_sandbox(task_of(repository).spec, use)
    return found


def texts(repository: Path, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    return [executed.text for executed in call_all(repository, *calls)]


def test_the_model_is_offered_what_it_was_trained_on_and_no_words_on_how_to_work(
    service: Service, repository: Path
) -> None:
    agent = Agent(HarnessSettings(200, tool_set="lines", at_limit="stop"))
    assert [tool["function"]["name"] for tool in agent.offered] == [tool["function"]["name"] for tool in TRAINED]
    scripts = [calling(("edit_file", RIGHT)), calling(("done", {}))]
    done, _ = work(service, repository, scripts, harness=agent)
    assert (done.ending, [call.succeeded for call in done.calls]) == ("done", [True, True])
    first = service.turn(done.inference_ids[0])
    assert [(message["role"], message["content"]) for message in first.messages] == [("user", "Repair add.")]
    assert agent.version != Agent(HarnessSettings(200, at_limit="stop")).version


def test_a_file_is_read_changed_and_tested(repository: Path) -> None:
    read, failing, changed, passing, after = call_all(
        repository,
        ("read_file", {"path": "add.py"}),
        ("run_tests", {}),
        ("edit_file", RIGHT),
        ("run_tests", {}),
        ("read_file", {"path": "add.py"}),
    )
    assert read.text == "1 def add(one, other):\n2     return one - other"
    assert (failing.text, failing.succeeded) == ("fail", False)
    assert (changed.text, passing.text, passing.succeeded) == ("ok", "pass", True)
    assert after.text == "1 def add(one, other):\n2     return one + other"


def test_the_one_file_beside_the_tests_is_open_and_of_several_the_one_that_was_read(repository: Path) -> None:
    assert texts(repository, ("edit_file", RIGHT), ("run_tests", {})) == ["ok", "pass"]
    (repository / "sub.py").write_text("def sub(one, other):\n    return one + other\n")
    unsure, _, changed, shown = texts(
        repository,
        ("edit_file", RIGHT),
        ("read_file", {"path": "sub.py"}),
        ("edit_file", {"line": 2, "text": "    return one - other"}),
        ("read_file", {"path": "sub.py"}),
    )
    assert unsure == "no file is open: read one first"
    assert (changed, shown.splitlines()[1]) == ("ok", "2     return one - other")


def test_what_cannot_be_done_is_refused_and_a_question_ends_the_work(repository: Path) -> None:
    far, missing, not_first, asks = call_all(
        repository,
        ("edit_file", {"line": 3, "text": ""}),
        ("read_file", {"path": "none.py"}),
        ("edit_file", {"line": 0, "text": ""}),
        ("ask", {"question": "which line?"}),
    )
    assert (far.text, far.is_malformed) == ("add.py has 2 lines", False)
    assert (missing.text, missing.succeeded) == ("none.py: there is no such file", False)
    assert not_first.is_malformed
    assert (asks.ends, asks.text) == (True, "")
