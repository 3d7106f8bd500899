"""The extension in a real VS Code, against a real service: what a user does becomes rewards, also after an outage."""

import json
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from editor import Editor, eventually, open_file, running_editor
from service_tree import Service

ROOT = Path(__file__).resolve().parents[3]
FILE = "def total(xs):\n    out = 0\n    for x in xs:\n\n    return out\n"
MISSING = 4  # the line
TEST_RUN = {
    "label": "tests",
    "type": "process",
    "command": "false",
    "group": {"kind": "test", "isDefault": True},
    "problemMatcher": [],
    "presentation": {"reveal": "never"},
}
SETTINGS = {
    "onward.learn": True,
    "onward.suggestions.debounceMs": 50,
    "onward.suggestions.maxTokens": 16,
    "onward.edits.maxTokens": 32,
    "onward.survival": {"survived_30s": 2, "survived_5m": 4, "no_outcome_of_the_service": 1},
}
Revision = dict[str, Any]


class RewardStream:
    """The service's stream of rewards, read on a thread, over outages."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._latest = 0
        self.revisions: dict[str, list[Revision]] = defaultdict(list)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                url = f"{self._service.url}/v1/rewards/stream?after={self._latest}"
                with urllib.request.urlopen(url, timeout=60) as response:
                    for line in response:
                        self._take(line)
            except (OSError, ValueError, HTTPException):  # it is down
                time.sleep(0.1)

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data: "):
            revision = json.loads(line[6:])
            self._latest = revision["sequence"]
            self.revisions[revision["inference_id"]].append(revision)

    def next(self, *components: str, after: int = 0, of: str | None = None) -> Revision:
        """Wait for a revision with exactly these components, of a turn if one is named, later than a sequence."""

        def find() -> Revision | None:
            listed = [each for revisions in list(self.revisions.values()) for each in list(revisions)]
            fits: Callable[[Revision], bool] = lambda each: (  # noqa: E731
                each["sequence"] > after
                and set(each["components"]) == set(components)
                and of in (None, each["inference_id"])
            )
            return next(filter(fits, listed), None)

        found: Revision = eventually(find, f"a reward of {components} in {json.dumps(self.revisions, indent=1)}")
        return found

    def now(self) -> int:
        return self._latest


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service whose acceptances leave room for what survives: rewards end at 1."""
    directory = tmp_path_factory.mktemp("service") / "service"
    directory.mkdir()
    shipped = (ROOT / "onward" / "rewards.toml").read_text()
    (directory / "rewards.toml").write_text(shipped.replace("weight = 1.0", "weight = 0.5", 1))
    service = Service(directory, {"learner.enabled": False}).start()
    yield service
    service.kill()


@pytest.fixture(scope="module")
def rewards(service: Service) -> RewardStream:
    return RewardStream(service)


@pytest.fixture(scope="module")
def window(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    directory = tmp_path_factory.mktemp("editor")
    workspace = directory / "workspace"
    workspace.mkdir()
    (workspace / "solve.py").write_text(FILE)
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode" / "tasks.json").write_text(json.dumps({"version": "2.0.0", "tasks": [TEST_RUN]}))
    with (
        running_editor(directory, workspace, {**SETTINGS, "onward.url": service.url}) as url,
        open_file(url, workspace / "solve.py", directory) as editor,
    ):
        yield editor


@pytest.fixture
def editor(window: Editor) -> Editor:
    window.write(FILE, MISSING)
    return window


def outcomes_of(service: Service, inference_id: str) -> list[str]:
    """Return the names of a turn's outcomes, each as often as it was told."""
    told = service.get(f"/v1/rewards/{inference_id}")["outcomes"]
    return sorted(outcome["name"] for outcome in told if outcome["name"] != "shown")


def accept(editor: Editor, rewards: RewardStream) -> Revision:
    """Have a suggestion and accept it; return its reward."""
    begun = rewards.now()
    editor.suggestion("        ")
    editor.press("Tab")
    return rewards.next("accepted", after=begun)


def test_accepting_is_rewarded_and_then_what_survives(service: Service, rewards: RewardStream, editor: Editor) -> None:
    begun = rewards.now()
    editor.suggestion("        ")
    editor.picture("suggestion")
    assert "v1" in editor.status.inner_text()
    editor.press("Tab")
    accepted = rewards.next("accepted", after=begun)
    editor.picture("accepted")
    assert accepted["value"] == 0.5
    inference_id = accepted["inference_id"]
    half = rewards.next("accepted", "survived_30s", of=inference_id)
    assert half["value"] == pytest.approx(0.6)
    whole = rewards.next("accepted", "survived_30s", "survived_5m", of=inference_id)
    assert whole["value"] == pytest.approx(0.75)
    assert outcomes_of(service, inference_id) == ["accepted", "survived_30s", "survived_5m"]
    turn = service.get(f"/v1/turns/{inference_id}")
    assert (turn["purpose"], turn["workload"], turn["learn"]) == ("suggestion", "suggestion", True)


def test_what_is_changed_does_not_survive(service: Service, rewards: RewardStream, editor: Editor) -> None:
    accepted = accept(editor, rewards)
    editor.press("End", "Shift+Home", "Delete")
    editor.page.keyboard.insert_text("        out = out + x  # by hand")
    story = f"/v1/rewards/{accepted['inference_id']}"

    def lost() -> list[float]:
        return [told["value"] for told in service.get(story)["outcomes"] if told["name"] == "survived_30s"]

    assert eventually(lost, "a look at what survived") == [0]
    assert rewards.revisions[accepted["inference_id"]][-1]["value"] == 0.5, "which adds nothing"


def test_undoing_is_told_and_taken_back_by_redoing(service: Service, rewards: RewardStream, editor: Editor) -> None:
    accepted = accept(editor, rewards)
    editor.press("Control+z")
    undone = rewards.next("accepted", "reverted", of=accepted["inference_id"])
    assert undone["value"] < 0
    editor.picture("undone")
    editor.press("Control+Shift+z")
    eventually(lambda: "reverted" not in rewards.revisions[accepted["inference_id"]][-1]["components"], "the redo")


def test_dismissing_is_told(rewards: RewardStream, editor: Editor) -> None:
    begun = rewards.now()
    editor.suggestion("        ")
    editor.press("Escape")
    assert rewards.next("rejected", after=begun)["value"] == -0.5


def test_a_part_is_told_as_its_share(rewards: RewardStream, editor: Editor) -> None:
    begun = rewards.now()
    editor.suggestion("        ", words=2)
    editor.press("Control+ArrowRight")
    editor.page.wait_for_timeout(200)
    editor.press("Escape")
    part = rewards.next("partially_accepted", after=begun)
    assert 0 < part["components"]["partially_accepted"] < 1


def test_without_consent_nothing_is_learned_and_no_file_is_sent(
    service: Service, rewards: RewardStream, editor: Editor
) -> None:
    editor.status.click()
    editor.page.get_by_text("does not learn any more").first.wait_for()
    editor.page.click(".view-lines")
    editor.write(FILE, MISSING)
    private = accept(editor, rewards)
    editor.status.click()
    editor.page.get_by_text("may learn from what you do").first.wait_for()
    editor.page.click(".view-lines")
    editor.write(FILE, MISSING)
    learned = accept(editor, rewards)
    rewards.next("accepted", "survived_30s", "survived_5m", of=learned["inference_id"])
    turns = {each["inference_id"]: service.get(f"/v1/turns/{each['inference_id']}") for each in (private, learned)}
    assert [turn["learn"] for turn in turns.values()] == [False, True]
    assert "survived_30s" not in outcomes_of(service, private["inference_id"])


def test_a_selection_is_changed_and_kept_or_undone(service: Service, rewards: RewardStream, editor: Editor) -> None:
    for decide, outcome in (("Control+Alt+n", "rejected"), ("Control+Alt+y", "accepted")):
        editor.write(FILE, 2)
        begun, before = rewards.now(), editor.text()
        editor.press("End", "Shift+Home", "Control+Alt+i")
        editor.page.get_by_text("What is to be changed?").wait_for()
        editor.page.keyboard.type("write total(xs): sum of xs")
        editor.press("Enter")
        editor.page.locator(".codelens-decoration").get_by_text("Keep").wait_for(timeout=20_000)
        editor.picture(f"edit-{outcome}")
        editor.page.click(".view-lines")
        editor.press(decide)
        decided = rewards.next(outcome, after=begun)
        assert service.get(f"/v1/turns/{decided['inference_id']}")["workload"] == "edit"
        if outcome == "rejected":
            eventually(lambda before=before: editor.text() == before, "the text as it was")


def test_tests_that_run_are_told_of_what_was_accepted_last(rewards: RewardStream, editor: Editor) -> None:
    accepted = accept(editor, rewards)
    editor.press("F1")
    editor.page.locator(".quick-input-widget input").first.wait_for()
    editor.page.keyboard.type("Tasks: Run Test Task")
    editor.page.locator(".quick-input-list").get_by_text("Run Test Task").first.wait_for()
    editor.press("Enter")

    def failed() -> Any:
        revisions = rewards.revisions[accepted["inference_id"]]
        return [each for each in revisions if each["components"].get("tests_passed") == -0.25]

    eventually(failed, "the tests' failure")
    editor.page.click(".view-lines")


def test_nothing_is_lost_or_told_twice_over_an_outage(service: Service, rewards: RewardStream, editor: Editor) -> None:
    """The service is killed before the user accepts, and VS Code is loaded anew before the service is there again."""
    begun, port = rewards.now(), int(service.url.rpartition(":")[2])
    editor.suggestion("        ")
    eventually(lambda: not editor.queued(), "an empty queue")
    service.kill()
    editor.press("Tab")
    told = ["accepted", "survived_30s", "survived_5m"]
    eventually(lambda: told in editor.queued().values(), "an acceptance, and twice what survives")
    eventually(lambda: "waiting" in editor.status.inner_text(), "the status")
    editor.picture("offline")
    editor.page.reload()
    editor.await_start()
    service.start(port=port)
    editor.write(FILE, MISSING)
    editor.suggestion("        ")
    accepted = rewards.next("accepted", "survived_30s", "survived_5m", after=begun)
    eventually(lambda: told not in editor.queued().values(), "a shorter queue")
    assert outcomes_of(service, accepted["inference_id"]) == told
    editor.picture("online-again")
