"""The extension in a real VS Code, against a real service: what a user does becomes rewards, also after an outage."""

import json
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from api_harness import serve
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
    # What a user changes once an acceptance is rewarded must come before the first look, on a busy machine, too.
    "onward.survival": {"survived_30s": 6, "survived_5m": 12, "no_outcome_of_the_service": 1},
}
Revision = dict[str, Any]


class RewardStream:
    """The service's stream of rewards, read on a thread, over outages."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._latest = 0
        self.revisions: dict[str, list[Revision]] = defaultdict(list)
        self._over = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def close(self) -> None:
        """Read no more: the service is to end, and its port may be another's next."""
        self._over.set()

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                url = f"{self._service.url}/v1/rewards/stream?after={self._latest}"
                with urllib.request.urlopen(url, timeout=60) as response:
                    for line in response:
                        self._take(line)
            except (OSError, ValueError, HTTPException):  # it is down
                self._over.wait(0.1)

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
def rewards(service: Service) -> Iterator[RewardStream]:
    with closing(RewardStream(service)) as made:
        yield made


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
    """Return the names of a turn's outcomes, each as often as it was told; its reward may be there before them."""
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
    told = ["accepted", "survived_30s", "survived_5m"]
    eventually(lambda: outcomes_of(service, inference_id) == told, "its outcomes in the store")
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


def consent(editor: Editor, given: bool) -> None:
    """Give the consent that was not there, or withdraw the one that was."""
    editor.status.click()
    said = "may learn from what you do" if given else "does not learn any more"
    editor.page.get_by_text(said).first.wait_for()
    editor.page.click(".view-lines")
    editor.write(FILE, MISSING)


def test_without_consent_nothing_is_learned_and_no_file_is_sent(
    service: Service, rewards: RewardStream, editor: Editor
) -> None:
    consent(editor, False)
    private = accept(editor, rewards)
    consent(editor, True)
    learned = accept(editor, rewards)
    rewards.next("accepted", "survived_30s", "survived_5m", of=learned["inference_id"])
    turns = {each["inference_id"]: service.get(f"/v1/turns/{each['inference_id']}") for each in (private, learned)}
    assert [turn["learn"] for turn in turns.values()] == [False, True]
    assert "survived_30s" not in outcomes_of(service, private["inference_id"])


def change_selection(editor: Editor) -> None:
    """Have the file's second line changed, and go back into the file."""
    keep = editor.page.locator(".codelens-decoration").get_by_text("Keep")
    keep.wait_for(state="hidden")  # that of a change before
    editor.write(FILE, 2)
    editor.press("End", "Shift+Home", "Control+Alt+i")
    editor.page.get_by_text("What is to be changed?").wait_for()
    editor.page.keyboard.type("write total(xs): sum of xs")
    editor.press("Enter")
    keep.wait_for()
    editor.page.click(".view-lines")


def test_a_selection_is_changed_and_kept_or_undone(service: Service, rewards: RewardStream, editor: Editor) -> None:
    for decide, outcome in (("Control+Alt+n", "rejected"), ("Control+Alt+y", "accepted")):
        editor.write(FILE, 2)
        begun, before = rewards.now(), editor.text()
        change_selection(editor)
        editor.picture(f"edit-{outcome}")
        editor.press(decide)
        decided = rewards.next(outcome, after=begun)
        assert service.get(f"/v1/turns/{decided['inference_id']}")["workload"] == "edit"
        if outcome == "rejected":
            eventually(lambda before=before: editor.text() == before, "the text as it was")


def test_a_change_that_is_changed_is_told_with_its_text_by_consent_alone(
    service: Service, rewards: RewardStream, editor: Editor
) -> None:
    for learn in (True, False):
        if not learn:
            consent(editor, False)
        begun = rewards.now()
        change_selection(editor)
        editor.press("Control+Home", "ArrowDown", "End", "ArrowLeft")
        editor.page.keyboard.insert_text("MINE")
        editor.press("Control+Alt+y")
        inference_id = rewards.next("edited", after=begun)["inference_id"]
        story = f"/v1/rewards/{inference_id}"

        def edits(story: str = story) -> list[Any]:
            return [each for each in service.get(story)["outcomes"] if each["name"] == "edited"]

        (told,) = eventually(edits, "the outcome in the store")
        known = service.get(f"/v1/feedback/{told['outcome_id']}")
        assert (known["metric_name"], 0 < known["value"] < 1) == ("edited", True)
        assert ("MINE" in (known["evidence"] or "")) == learn
        if not learn:
            assert known["evidence"] is None
    consent(editor, True)


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


def ask_another_service(editor: Editor, directory: Path) -> None:
    """Let the user go over to another service, and accept a suggestion of its."""
    with serve(directory / "other") as other:
        editor.set("onward.url", other.url)
        editor.page.reload()
        editor.await_start()
        editor.write(FILE, MISSING)
        editor.suggestion("x")
        editor.press("Tab")
        (told,) = eventually(other.outcomes, "the acceptance")
        assert told.inference_id in {turn.inference_id for turn in other.all_turns()}


def test_nothing_is_lost_or_told_twice_over_an_outage(
    service: Service, rewards: RewardStream, editor: Editor, tmp_path: Path
) -> None:
    """The service is killed before the user accepts, who tries another one and comes back.

    VS Code is loaded anew before the service is there again."""
    begun, port = rewards.now(), int(service.url.rpartition(":")[2])
    editor.suggestion("        ")
    eventually(lambda: not editor.queued(), "an empty queue")
    service.kill()
    editor.press("Tab")
    told = ["accepted", "survived_30s", "survived_5m"]
    eventually(lambda: told in editor.queued().values(), "an acceptance, and twice what survives")
    eventually(lambda: "waiting" in editor.status.inner_text(), "the status")
    editor.picture("offline")
    ask_another_service(editor, tmp_path)
    assert told in editor.queued().values(), "what the other service does not know waits for its own"
    editor.set("onward.url", service.url)
    editor.page.reload()
    editor.await_start()
    service.start(port=port)
    editor.write(FILE, MISSING)
    editor.suggestion("        ")
    accepted = rewards.next("accepted", "survived_30s", "survived_5m", after=begun)
    eventually(lambda: told not in editor.queued().values(), "a shorter queue")
    inference_id = accepted["inference_id"]
    eventually(lambda: outcomes_of(service, inference_id) == told, "its outcomes in the store")
    editor.picture("online-again")
