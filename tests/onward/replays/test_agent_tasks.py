"""What a session of an agent tells of a task: the user's request, its changes, and which of its commands are tests."""

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import made_events
import msgspec
import pytest
from byte_renderer import END, ByteRenderer, call_ids, ids
from made_drafts import agent_draft

from core.events import Completion, TextEdit, ToolCall
from core.ids import InferenceId, Namespace, SessionId, UserHash
from core.operations.consents import Consent, ConsentSubject
from core.operations.exclusions import Exclusion
from core.unstored import without_words
from onward.replays.exports.conversations import Conversations
from onward.replays.exports.past import Logged
from onward.replays.suites.agents import SECRET, Agents
from onward.replays.suites.commands import Ran, doubt_of, exit_code_of, only_looks
from onward.wiring.foundation import open_foundation
from onward.wiring.suites.usable import unusable_in
from serving.evals.agent_work import AgentWork, FileChange, State

SESSION = SessionId("of-an-agent")
SYSTEM = {"role": "system", "content": "You work on a task."}
ASKED = {"role": "user", "content": "Repair add."}
EDIT = (
    "edit",
    {"path": "add.py", "edits": [{"old": 'one - other  # "-"\n', "new": "one + other\n"}]},
    "add.py was changed:",
)
TEST = ("terminal", {"command": "python -m pytest -q"}, "exit code 0\nstdout:\n1 passed")
Done = tuple[str, dict[str, Any], str | None]


class Session:
    """A session that is logged turn by turn; each turn makes calls, whose results the next one tells."""

    def __init__(self) -> None:
        self.turns: list[Completion] = []
        self._after: dict[str, tuple[dict[str, Any], ...]] = {}

    def add(
        self,
        *done: Done,
        parent: Completion | None = None,
        is_root: bool = False,
        opening: tuple[dict[str, Any], ...] = (SYSTEM, ASKED),
        **changes: Any,
    ) -> Completion:
        parent = None if is_root else parent or (self.turns[-1] if self.turns else None)
        calls = tuple(
            ToolCall(id=f"call-{at}", name=name, arguments=json.dumps(given), index=at)
            for at, (name, given, _) in enumerate(done)
        )
        messages = opening if parent is None else self._after[parent.inference_id]
        at = made_events.NOW + timedelta(seconds=len(self.turns))
        turn: Completion = made_events.completion(
            SESSION,
            parent_id=None if parent is None else parent.inference_id,
            turn_index=len(self.turns),
            received_at=at,
            tool_calls=calls,
            messages=messages,
            **changes,
        )
        told = [
            {"role": "tool", "tool_call_id": call.id, "content": result}
            for call, (_, _, result) in zip(calls, done, strict=True)
            if result is not None
        ]
        self._after |= {turn.inference_id: (*messages, {"role": "assistant", "content": "", "tool_calls": []}, *told)}
        self.turns.append(turn)
        return turn

    def found(self, states: dict[str, State] | None = None) -> tuple[str, AgentWork] | str:
        agents = Agents(Conversations(ByteRenderer()), states or {})
        return agents.work_of([Logged(turn, None) for turn in self.turns], self.turns[-1])

    def work(self, states: dict[str, State] | None = None) -> AgentWork:
        found = self.found(states)
        assert not isinstance(found, str), found
        return found[1]


def session_of(*done: Done, **changes: Any) -> Session:
    made = Session()
    for each in done:
        made.add(each, **changes)
    made.add(("done", {}, None), **changes)
    return made


def test_a_session_becomes_a_request_changes_and_tests() -> None:
    before = ("terminal", {"command": "python -m pytest -q"}, "exit code 1\nstdout:\n1 failed")
    known = State(task="/tasks/add", digest="d", workdir="/app")
    made = session_of(before, EDIT, ("write", {"path": "new.py", "content": "x = 1\n"}, "new.py: 1 lines"), TEST)
    found = made.found({"blake3:other": known})
    assert not isinstance(found, str), found
    asked, work = found
    assert asked == "Repair add."
    assert work.changes == (
        FileChange(kind="edit", path="add.py", old='one - other  # "-"\n', new="one + other\n"),
        FileChange(kind="write", path="new.py", new="x = 1\n"),
    )
    (test,) = work.tests
    assert (test.command, test.exit_code, test.failed_before) == ("python -m pytest -q", 0, True)
    assert (work.image, work.state, work.unseen) == (None, None, ())
    told = session_of(EDIT, TEST, environment_image="blake3:other").work({"blake3:other": known})
    assert (told.image, told.state) == ("blake3:other", known)
    assert session_of(EDIT, TEST, environment_image="blake3:gone").work({"blake3:other": known}).state is None
    ours = session_of(EDIT, ("run_tests", {"paths": ["tests"]}, "exit code 0\nstdout:\n1 passed"))
    assert [each.command for each in ours.work().tests] == [
        "python3 -m pytest -q --no-header -p no:cacheprovider tests"
    ]


@pytest.mark.parametrize(
    ("name", "given", "change"),
    [
        ("Edit", {"file_path": "a", "old_string": "1", "new_string": "2"}, ("edit", "a", "1", "2")),
        ("edit", {"path": "a", "edits": [{"old": "1", "new": "", "everywhere": True}]}, ("everywhere", "a", "1", "")),
        ("Write", {"file_path": "a", "content": "é\r\n"}, ("write", "a", "", "é\r\n")),
    ],
)
def test_tools_of_any_agent_that_change_files_are_read(name: str, given: dict[str, Any], change: Any) -> None:
    (found,) = session_of((name, given, "done"), TEST).work().changes
    assert (found.kind, found.path, found.old, found.new) == change


def test_a_call_counts_as_its_user_edited_it() -> None:
    made = session_of(EDIT, TEST)
    turn, new = made.turns[0], "other + one\n"
    tokens = (*call_ids("edit", {"path": "add.py", "old": "1", "new": "one + other\n"}), END)
    call = ToolCall(
        id="call-0", name="edit", arguments='{"path": "add.py", "old": "1", "new": "one + other\\n"}', index=0
    )
    made.turns[0] = turn = msgspec.structs.replace(turn, token_ids=tokens, tool_calls=(call,), tools=({},))
    old = ids("one + other")
    start = next(at for at in range(len(tokens)) if tokens[at : at + len(old)] == tuple(old))
    edit = TextEdit(start=start, end=start + len(old), token_ids=tuple(ids("other + one")))
    kept = msgspec.structs.replace(made_events.reward_of(turn, 1.0, turn.received_at, revision=0), edits=(edit,))
    agents = Agents(Conversations(ByteRenderer()), {})
    found = agents.work_of([Logged(each, kept if each is turn else None) for each in made.turns], made.turns[-1])
    assert not isinstance(found, str), found
    assert ([each.new for each in found[1].changes], found[1].turns) == ([new], (turn.inference_id,))


def test_refused_calls_change_nothing_and_calls_without_a_result_are_named() -> None:
    refused = ("edit", {"path": "add.py", "edits": [{"old": "x", "new": "y"}]}, "add.py: `old` is not in the file")
    untold = ("write", {"path": "new.py", "content": "x = 1\n"}, None)
    assert len(session_of(refused, EDIT, TEST).work().changes) == 1
    assert session_of(refused, TEST).found() == "no_changes"
    work = session_of(untold, EDIT, ("terminal", {"command": "sed -i s/a/b/ add.py"}, "exit code 0"), TEST).work()
    assert [change.path for change in work.changes] == ["add.py"]
    assert work.unseen == (
        "write of new.py, whose result is not in the log",
        "the command sed -i s/a/b/ add.py",
    )
    assert session_of(EDIT, TEST, untold).found() == "no_tests", "it may have changed what was tested"


@pytest.mark.parametrize(
    ("command", "result", "doubt"),
    [
        ("pytest", None, "no_result"),
        ("pytest", "1 passed", "no_exit_status"),
        ("pytest", "1 passed\nexit code 0", "no_exit_status"),  # which the command may have printed
        ("pytest", '{"exit_code": true}', "no_exit_status"),
        ("pytest", "ended after 60 s: its time was over", "no_exit_status"),
        ("pytest", "exit code 1", "failed"),
        ("pip install x && pytest", "exit code 0", "network"),
        ("sh test.sh http://host/", "exit code 0", "network"),
        ("rm -rf build && pytest", "exit code 0", "destructive"),
        ("pytest > out.txt", "exit code 0", "destructive"),
        ("git checkout -- tests && pytest", "exit code 0", "destructive"),
        ("pytest /home/ada/tests", "exit code 0", "of_its_machine"),
        ("pytest '/home/ada/tests'", "exit code 0", "of_its_machine"),
        ("pytest $TESTS", "exit code 0", "of_its_machine"),
        ("pytest | tail -1", "exit code 0", "hides_its_end"),
        ("pytest; true", "exit code 0", "hides_its_end"),
        ("pytest || true", "exit code 0", "hides_its_end"),
        ("ls", "exit code 0", "no_test"),
        ("sed -i s/a/b/ x && pytest", "exit code 0", "no_test"),
        ("cd /app && pytest /app/tests 2>&1", "exit code 0", None),
        ("pytest -k 'a; b | c' 2>/dev/null", '{"exit_code": 0, "output": ""}', None),
        ("sh run_tests.sh", "exit code 0", None),
    ],
)
def test_commands_in_doubt_are_no_tests(command: str, result: str | None, doubt: str | None) -> None:
    ran = Ran(command, exit_code_of(result), 1, is_told=result is not None)
    assert doubt_of(ran, 1, "/app", changed_tests=False) == doubt
    if doubt is None:
        assert only_looks(command)
        assert doubt_of(ran, 2, "/app", changed_tests=False) == "changed_since"
        assert doubt_of(ran, 1, "/app", changed_tests=True) == "tests_changed"


def test_tests_that_the_session_changed_judge_nothing() -> None:
    assert session_of(("write", {"path": "tests/test_add.py", "content": "x"}, "ok"), EDIT, TEST).found() == "no_tests"
    assert session_of(EDIT, TEST, EDIT).found() == "no_tests", "it was changed since"


@pytest.mark.parametrize("command", ["sh run_tests.sh", "cd tools && A=1 bash ./run_tests.sh", "./run_tests.sh"])
def test_a_script_that_the_session_wrote_judges_nothing(command: str) -> None:
    """Whoever does the work again has no such script, so that each version would lose, or could not be judged."""
    wrote = ("write", {"path": "/app/tools/run_tests.sh", "content": "exit 0\n"}, "ok")
    ran = ("terminal", {"command": command}, "exit code 0")
    assert session_of(wrote, EDIT, ran).found() == "no_tests"
    work = session_of(wrote, EDIT, ran, ("terminal", {"command": "sh other_tests.sh"}, "exit code 0")).work()
    assert [each.doubt for each in work.commands] == ["tests_changed", None]


def test_helpers_are_told_apart_from_the_agent_itself() -> None:
    made = Session()
    asks = made.add(("task", {"prompt": "repair it"}, "it is repaired"))
    told = {"role": "system", "content": "You are asked by an agent."}
    helper = made.add(EDIT, TEST, is_root=True, opening=(told, ASKED))
    made.add(parent=helper)
    own = ("write", {"path": "new.py", "content": "x = 1\n"}, "new.py: 1 lines")
    made.add(own, ("terminal", {"command": "sh test.sh"}, "exit code 0"), parent=asks)
    made.add(("done", {}, None))
    work = made.work()
    assert [(change.path, change.by_helper) for change in work.changes] == [("add.py", True), ("new.py", False)]
    assert [(each.command, each.doubt) for each in work.commands] == [
        ("python -m pytest -q", "of_a_helper"),
        ("sh test.sh", None),
    ]


def test_a_session_that_went_back_after_a_change_is_left_alone() -> None:
    made = Session()
    first = made.add(("read", {"path": "add.py"}, "1\tx"))
    made.add(EDIT)
    made.add(EDIT, TEST, parent=first)
    made.add(("done", {}, None))
    assert made.found() == "went_back"


def test_secrets_are_in_no_draft() -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"[:36]
    made = Session()
    opening = (SYSTEM, {"role": "user", "content": f"Repair add with {secret}."})
    made.add(("write", {"path": "new.py", "content": f"KEY = '{secret}'\n"}, "ok"), opening=opening)
    made.add(("terminal", {"command": f"TOKEN={secret} pytest"}, "exit code 0"), TEST)
    made.add(("terminal", {"command": f"push --key {secret}"}, None), TEST)
    made.add(("done", {}, None))
    found = made.found()
    assert not isinstance(found, str), found
    said = found[0] + found[1].model_dump_json()
    assert secret not in said
    assert said.count(SECRET) >= 4
    assert [each.doubt for each in found[1].commands if SECRET in each.command] == ["secret", "secret"]


def test_consent_counts_as_it_stands_when_a_draft_is_decided(tmp_path: Path) -> None:
    """So do exclusions, withdrawals, and turns that are gone or were not to be stored."""
    user = UserHash("u1")
    turn = made_events.completion(SESSION, user_id=user)
    draft = agent_draft(tmp_path / "task").model_copy(
        update={
            "source": agent_draft(tmp_path / "task").source.model_copy(
                update={"session": SESSION, "turn": turn.inference_id}
            ),
            "reuse": agent_draft(tmp_path / "task").reuse.model_copy(update={"namespace": "default"}),
        }
    )
    with closing(open_foundation(tmp_path / "service")) as source:
        why = unusable_in(source)
        assert why(draft) == "turns of its session are gone"
        with source.store.work() as work:
            work.turns.put([turn])
        assert why(draft) is None
        for subject in (
            ConsentSubject(Namespace("default"), "session", SESSION),
            ConsentSubject(Namespace("default"), "user", user),
        ):
            with source.store.work() as work:
                work.consents.put(subject, Consent(learn=False), takes_back=False)
            assert why(draft) == "its session may not be learned from"
            with source.store.work() as work:
                work.consents.put(subject, Consent(), takes_back=False)
            assert why(draft) is None
        void = msgspec.structs.replace(made_events.reward_of(turn, 0.0, turn.received_at, revision=1), void=True)
        with source.store.work() as work:
            work.rewards.put([(0, made_events.reward_of(turn, 1.0, turn.received_at, revision=0)), (0, void)])
        assert why(draft) == "what was said of it was taken back"
        again = msgspec.structs.replace(void, revision=2, void=False)
        with source.store.work() as work:
            work.rewards.put([(0, again)])
        assert why(draft) is None
        with source.store.work() as work:
            work.turns.put([made_events.completion(SESSION, inference_id=InferenceId("later"), turn_index=2)])
        assert why(draft) == "turns of its session are gone", "nobody knows what the second one said"
        with source.store.work() as work:
            work.turns.put([made_events.completion(SESSION, inference_id=InferenceId("between"), turn_index=1)])
        assert why(draft) is None
        beside = without_words(made_events.completion(SESSION, inference_id=InferenceId("beside"), turn_index=3))
        with source.store.work() as work:
            work.exclusions.add(Exclusion(users=frozenset({user})), "it lied", "ada", turn.received_at)
        assert why(draft) == "its session is excluded from learning"
        with source.store.work() as work:
            work.turns.put([beside])
        assert why(draft) == "a turn of its session may not be stored"
