"""Cases out of a directory's own sessions: what is drafted and what never is, and what of a past tells a case."""

import json
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from logged_world import MODEL, make_reward, make_turn
from made_events import policy
from shown_examples import SUITES, commands, of_test
from task_folders import write_task

from api.feedback.edits import edits_to
from core.errors import ConfigError
from core.events import Completion, Outcome, Reward, Segment, ToolCall, Topic, VersionSpan
from core.ids import InferenceId, Namespace, OutcomeId, UserHash, base_ref
from core.operations.consents import Consent, ConsentSubject
from core.operations.exclusions import Exclusion
from core.unstored import without_words
from environments.tasks.adapters import reasoning, verifiers_process
from environments.tasks.adapters.verifiers_process import Wanted
from environments.tasks.task import Task
from learner.sequences.scored import TurnRecord
from learner.versions import manifest
from onward.cli import app
from onward.replays.suites import contamination
from onward.wiring.foundation import open_foundation
from onward.wiring.suites.decided import learned_by
from serving.evals.cases import Draft, load_suite, read_suite
from serving.rendering import load_renderer

DOUBLE = """def double(numbers):
    result = []
    for number in numbers:
        result.append(number * 2)
    return result"""
SAID, KEPT = "def total(xs):\n    return sum(xs)", "def total(xs):\n    return sum(xs) + 1"
OF_ANOTHER = "def total(xs):\n    return sum(xs) - 1"
WHEN = datetime(2026, 1, 2, tzinfo=UTC)
CASE = """
[[case]]
name = "{name}"
prompt = "{prompt}"
solution = {solution}
checker = {{ kind = "contains", all = ["return"] }}
"""


def turn(number: int, asks: str, text: str, **changes: Any) -> Completion:
    return make_turn(number, messages=({"role": "user", "content": asks},), text=text, **changes)


def edited() -> tuple[Completion, Reward]:
    """Return a turn and its reward, whose user changed a part of the answer."""
    renderer = load_renderer(MODEL)
    ids = renderer.answer_tokens(SAID, is_first=True)
    spans = (VersionSpan(start=0, end=len(ids), version=base_ref(1)),)
    fields: dict[str, Any] = {"token_ids": ids, "logprobs": (-0.5,) * len(ids), "policy_versions": spans}
    fields["segments"] = (Segment(start=0, end=len(ids), kind="answer"),)
    made = turn(40, "Add the numbers of a list.", SAID, **fields)
    edits = edits_to(renderer, made, None, KEPT)
    assert edits
    return made, msgspec.structs.replace(make_reward(made, 0.5), edits=edits, edited_by=UserHash("u2"))


def edited_by(user: str, turn: Completion, text: str) -> Outcome:
    return msgspec.structs.replace(
        outcome(turn, "edited", 0.5),
        outcome_id=OutcomeId(f"{user}-{text}"),
        user_id=UserHash(user),
        edits=edits_to(load_renderer(MODEL), turn, None, text),
        evidence=text,
    )


def outcome(turn: Completion, name: str, value: Any) -> Outcome:
    at = turn.received_at + timedelta(seconds=1)
    return Outcome(
        outcome_id=OutcomeId(f"{turn.inference_id}-{name}"),
        inference_id=turn.inference_id,
        session_id=None,
        namespace=turn.namespace,
        name=name,
        value=value,
        observed_at=at,
        received_at=at,
    )


class World:
    """A directory with a session of each kind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.good = turn(0, "Write a function that doubles.", DOUBLE, user_id=UserHash("u1"), key_id="plugin")
        self.edited, of_edited = edited()
        self.bad = turn(2, "Sort a list of names.", "names.sort()")
        call = ToolCall(id="c", name="edit", arguments="{}", index=0)
        rewarded = [
            (self.good, 1.0),
            (self.bad, -0.5),
            (turn(1, "Please write a function that doubles.", "def twice(n): return n + n"), 1.0),  # asks the same
            (turn(18, " \n", "print()"), 1.0),
            (turn(3, "Read a file.", "", tool_calls=(call,)), 1.0),
            (turn(4, "Count the words.", "len(text.split())", environment="simulated"), 1.0),
            (turn(15, "Reverse a string.", "text[::-1]", session="quotes-private"), 1.0),
            (turn(16, "Open a socket.", "socket.socket()", session="quotes-unstored"), 1.0),
            (turn(17, "Close a file.", "file.close()", parent_id=InferenceId("deleted"), turn_index=1), 1.0),
            (turn(19, "Say hello.", "print('hello')", tags={"processing_purpose": "assistance"}), 1.0),
            (turn(20, "Say goodbye.", "print('goodbye')", user_id=UserHash("liar")), 1.0),
            (turn(21, "Write a haiku.", "furuike ya", user_id=UserHash("left")), 1.0),
        ]
        turns = [each for each, _ in rewarded] + [
            self.edited,
            turn(7, "Say nothing of this.", "secret", session="quotes-private", learn=False),
            without_words(turn(8, "Nor of this.", "secret", session="quotes-unstored")),
            turn(9, "What is a monad?", "A monoid."),
        ]
        said = [outcome(self.good, "accepted", True), outcome(self.good, "comment", "my own words")]
        said += [
            edited_by(user, self.edited, text) for user, text in (("u1", OF_ANOTHER), ("u2", OF_ANOTHER), ("u2", KEPT))
        ]
        rewards = [make_reward(each, value) for each, value in rewarded] + [of_edited]
        self._write([*turns, *said], rewards)

    def _write(self, events: Sequence[Any], rewards: Sequence[Reward]) -> None:
        self.directory.mkdir()
        with closing(open_foundation(self.directory)) as made:
            made.log.append_blocking(Topic.TURNS, events)
            made.log.append_blocking(Topic.REWARDS, rewards)
            with made.store.work() as work:
                work.exclusions.add(Exclusion(users=frozenset({UserHash("liar")})), "lies", "ada", WHEN)
                left = ConsentSubject(Namespace("default"), "user", "left")
                work.consents.put(left, Consent(learn=False), takes_back=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("logged") / "service")


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """Run a command that prints JSON; return its exit code and what it printed."""
    code = 0
    try:
        app(list(words), result_action="return_value")
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr().out
    return code, json.loads(said) if said.startswith(("{", "[")) else said


def is_told(provenance: Any, versions: list[str]) -> bool:
    """Return whether a report says which program made it, how it was asked to, and of what."""
    made = len(provenance["commit"]) == 40 and provenance["command"].startswith("onward")
    return made and provenance["model_digest"] is not None and provenance["versions"] == versions


def mined(world: World, suite: Path, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    return ran(capsys, "suite", "mine", str(world.directory), "--out", str(suite), *options)[1]


LEFT_OUT = {
    "below_least_reward": 1,
    "excluded": 1,
    "no_changes": 1,
    "other_purpose": 1,
    "like_a_draft": 1,
    "no_consent": 2,
    "no_words": 1,
    "not_stored": 1,
    "simulated": 1,
    "turns_missing": 1,
    "unrewarded": 1,
}


def test_what_users_kept_is_drafted_and_nothing_that_may_not_be_used(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite"
    found = mined(world, suite, capsys)
    assert (found["sessions"], found["left_out"], found["missing"]) == (14, LEFT_OUT, 0)
    drafts = {draft.source.turn: draft for draft in read_suite(suite).drafts.values()}
    assert drafts.keys() == {world.good.inference_id, world.edited.inference_id}
    good, edited = drafts[world.good.inference_id], drafts[world.edited.inference_id]
    assert (good.asked, good.solution, good.source.edited) == ("Write a function that doubles.", DOUBLE, False)
    assert (edited.solution, edited.source.edited, edited.source.reward) == (KEPT, True, 0.5)
    assert edited.source.outcomes == (*["edited: 0.5"] * 3, "another user's edit says otherwise")
    assert (good.source.outcomes, good.source.versions) == (("accepted: True",), ("1",)), "without the user's words"
    told = {"namespace": "default", "user": "u1", "key": "plugin", "only_for": "evaluation"}
    assert good.reuse.model_dump() == told
    assert good.source.session == world.good.session_id
    reviewed = " ".join(ran(capsys, "suite", "review", str(suite))[1].split())
    assert reviewed.count("one user's edit") == 1
    assert "secret" not in "".join(path.read_text() for path in suite.rglob("*.toml"))
    assert [path.name for path in suite.iterdir()] == ["drafts"], "nothing of the work is left"
    own = f"learner.admission.keep_out={suite.parent / '.' / suite.name}"
    again = mined(world, suite, capsys, "--set", own)
    assert (again["drafts"], again["left_out"]) == ([], LEFT_OUT | {"like_a_draft": 3})
    assert (found["kept_out"], again["kept_out"]) == (False, True)
    assert is_told(found["provenance"], ["1", "1"])


def test_a_person_decides_and_what_was_decided_is_not_drafted_again(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite, checker = tmp_path / "suite", '{ kind = "contains", all = ["number * 2"] }'
    mined(world, suite, capsys)
    listed = ran(capsys, "suite", "review", str(suite), "--json")[1]
    names = {each["solution"]: each["name"] for each in listed}
    shown = ran(capsys, "suite", "review", str(suite))[1]
    assert names[DOUBLE] in shown
    assert "accepted: True" in shown
    assert ran(capsys, "suite", "accept", str(suite), names[DOUBLE], "--checker", checker)[0] == 0
    assert ran(capsys, "suite", "reject", str(suite), names[KEPT], "--why", "too easy")[0] == 0
    (case,) = load_suite(suite).cases
    assert (case.solution, case.name) == (DOUBLE, names[DOUBLE])
    again = mined(world, suite, capsys)
    others = {why: count for why, count in LEFT_OUT.items() if why != "like_a_draft"}
    assert (again["drafts"], again["left_out"]) == ([], others | {"like_a_case": 2, "like_a_rejected_one": 1})
    few = mined(world, tmp_path / "few", capsys, "--most", "1", "--least-reward", "0.75")
    assert (len(few["drafts"]), few["left_out"]["below_least_reward"]) == (1, 2)
    allowed = mined(world, tmp_path / "allowed", capsys, "--purpose", "assistance")
    assert allowed["left_out"].keys() == LEFT_OUT.keys() - {"other_purpose"}
    with pytest.raises(ConfigError, match="--most 0: want 1 or more"):
        mined(world, tmp_path / "none", capsys, "--most", "0")


def test_what_the_page_shows_can_be_done_with_ones_own_sessions(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/evals.md has names of drafts that nobody else has: those of this world take their place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(world.directory)
    check, draft = of_test(SUITES, "docs/evals.md")
    mine, *decide = commands([draft])
    assert ran(capsys, *mine[1:])[0] == 0
    names = {each.solution: each.name for each in read_suite(tmp_path / "SUITE").drafts.values()}
    places = {"mined-0f3a9c51d2e7": names[KEPT], "mined-77b01e4c9a20": names[DOUBLE]}
    for words in decide:
        assert ran(capsys, *(places.get(word, word) for word in words[1:]))[0] == 0, words
    (case,) = load_suite(tmp_path / "SUITE").cases
    assert (case.name, read_suite(tmp_path / "SUITE").drafts) == (names[KEPT], {})
    write_task(tmp_path / "tasks" / "one")
    (tmp_path / "docs.jsonl").write_text(json.dumps({"text": KEPT}) + "\n")
    ((_, *words),) = commands([check])
    code, said = ran(capsys, *words)
    assert (code, "docs.jsonl:1" in said) == (1, True), said


@pytest.mark.parametrize("user", ["mallory", None])
def test_who_names_her_sessions_keeps_nobody_elses_from_being_drafted(
    user: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where she names no user."""
    words = ["ants", "bees", "cows", "dogs", "eels"]
    hers = [turn(n, f"Draw some {word}.", f"draw_{word}()", session=f"0-{n}") for n, word in enumerate(words)]
    hers = [msgspec.structs.replace(each, user_id=user and UserHash(user)) for each in hers]
    his = turn(7, "Add two numbers.", "a + b", user_id=UserHash("bob"))
    world = object.__new__(World)
    world.directory = tmp_path / "service"
    world._write([*hers, his], [make_reward(each, 1.0) for each in (*hers, his)])
    found = mined(world, tmp_path / "suite", capsys, "--most", "3")
    assert (len(found["drafts"]), found["left_out"]) == (3, {"beyond_most": 3})
    users = [draft.reuse.user for draft in read_suite(tmp_path / "suite").drafts.values()]
    assert sorted(map(str, users)) == sorted(["bob", str(user), str(user)]), "what others leave is hers"


def test_what_most_answers_have_in_common_is_no_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else one user's draft keeps everybody's turns from being learned from."""
    words = ["ants", "bees", "cows", "dogs", "eels"]
    usual = "Sure, here is what you asked for, ready to be run as it stands; tell me whatever is to be changed in it"
    others = [
        turn(n, f"Draw some {word}.", f"{usual}: draw_{word}({n})", session=f"s{n}", user_id=UserHash(f"u{n}"))
        for n, word in enumerate(words)
    ]
    hers = turn(8, "Say what you always say.", usual, user_id=UserHash("mallory"))
    world = object.__new__(World)
    for count, left_out in ((4, {"unrewarded": 4}), (5, {"said_by_many": 1, "unrewarded": 5})):
        world.directory = tmp_path / f"service-{count}"
        world._write([*others[:count], hers], [make_reward(hers, 1.0)])
        found = mined(world, tmp_path / f"suite-{count}", capsys)
        assert (len(found["drafts"]), found["left_out"]) == (int(count == 4), left_out)


def test_a_check_names_what_tells_a_case_and_which_version_learned_it(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of other libraries among them, which stand here for what these make."""
    suite = tmp_path / "suite"
    suite.mkdir()
    cases = [("double", "Something else entirely.", DOUBLE), ("names", "Sort a list of names.", "sorted(names)")]
    cases.append(("sockets", "Open a socket, please.\nAnd listen.", "sockets"))
    text = [
        CASE.format(name=name, prompt=json.dumps(asks)[1:-1], solution=json.dumps(solved))
        for name, asks, solved in cases
    ]
    (suite / "cases.toml").write_text("".join(text))
    with closing(open_foundation(world.directory)) as made:
        path = manifest.path_of(base_ref(7))
        made.blobs.put(path, manifest.encode(learned(world.good)))
        with made.store.work() as work:
            version = work.policies.allocate(WHEN)
            work.policies.put(policy(version, policy="base", manifest=path, created_at=WHEN))
        later, good = WHEN + timedelta(seconds=1), world.good.inference_id
        tells = learned_by(made)
        assert (tells(good, WHEN), tells(good, later)) == ("version 1 has learned from it since", None)
        assert tells(world.bad.inference_id, WHEN) is None
    corpus = tmp_path / "corpus.jsonl"
    said = [{"role": role, "content": text} for role, text in (("user", "Sort a list of names."), ("assistant", "?"))]
    heard = [{"role": "user", "content": each} for each in ("Open a socket, please.", "And listen.")]
    documents: list[dict[str, Any]] = [{"text": f"# code\n{DOUBLE}\n"}, {"text": "nothing"}]
    documents += [{"token_ids": [1], "spans": []}, {"messages": said}, {"messages": heard}]
    corpus.write_text("".join(json.dumps(each) + "\n" for each in documents))
    files = {"solution/solve.sh": f"#!/bin/sh\ncat >a.py <<EOF\n{DOUBLE}\nEOF\n"}
    task = write_task(tmp_path / "tasks" / "one", files=files)
    (tmp_path / "questions").mkdir()
    (tmp_path / "questions" / "reasoning-gym.toml").write_text("")
    libraries = stand_in_libraries(tmp_path / "libraries", monkeypatch)
    given = [str(each) for each in (tmp_path / "tasks", *libraries)]
    sources = ["--sessions", str(world.directory), "--corpus", str(corpus)]
    sources += [part for each in given for part in ("--tasks", each)]
    own = f'rollouts.task_sets={{own = {{folders = ["{tmp_path / "questions"}"]}}}}'
    code, found = ran(capsys, "evals", "check", str(suite), *sources, "--set", own, "--json")
    assert is_told(found["provenance"], ["1", "1"])
    assert code == 1
    places = {(each["case"], each["by"], each["kind"], each["where"]): each["learned_by"] for each in found["found"]}
    assert places == {
        ("double", "solution", "turn", world.good.inference_id): 7,
        ("names", "prompt", "turn", world.bad.inference_id): None,
        ("double", "solution", "document", f"{corpus}:1"): None,
        ("names", "prompt", "document", f"{corpus}:4"): None,
        ("sockets", "prompt", "document", f"{corpus}:5"): None,
        ("double", "solution", "task", str(task.resolve())): None,
        ("double", "solution", "task", "reasoning-gym/numbers/0"): None,
        ("names", "prompt", "task", "reasoning-gym/numbers/1"): None,
        ("names", "prompt", "task", "verifiers/sorting/0"): None,
    }
    assert found["looked_at"] == {"turn": 14, "document": 4, "task": 4}
    assert sum(found["not_looked_at"].values()) == 4, found["not_looked_at"]
    assert any("questions/reasoning-gym.toml: dataset: Field required" in each for each in found["not_looked_at"])
    shown = ran(capsys, "evals", "check", str(suite), *sources)[1]
    assert f"{world.good.inference_id}, learned by version 7" in shown
    (tmp_path / "empty.jsonl").write_text('{"text": "nothing"}\n')
    assert ran(capsys, "evals", "check", str(suite), "--corpus", str(tmp_path / "empty.jsonl"))[0] == 0
    with pytest.raises(ConfigError, match="say what the suites are compared with"):
        ran(capsys, "evals", "check", str(suite))


def stand_in_libraries(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Write a folder for each library, which makes of it what a case asks or says."""
    questions = [("Double these numbers: 1 2 3.", DOUBLE), ("Sort a list of names.", "?")]
    entries = [{"question": question, "answer": answer} for question, answer in questions]
    monkeypatch.setattr(reasoning, "_dataset", lambda _made_by: entries)
    monkeypatch.setattr(reasoning, "_library_version", lambda: "0")

    async def loaded(wanted: Wanted, _folder: Path) -> tuple[Task, ...]:
        told = {"name": "one", "prompt": "Sort a list of names."}
        return (verifiers_process._task(wanted, 0, told),)

    monkeypatch.setattr(contamination, "environment_tasks", loaded)
    files = {"numbers/reasoning-gym.toml": 'dataset = "numbers"\nsize = 2\n'}
    files["sorting/verifiers.toml"] = '[environment.taskset]\nid = "sorting"\n'
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text(text)
    return [place / "numbers", place / "sorting"]


def learned(turn: Completion) -> manifest.Manifest:
    """Return the manifest of an update that learned from a turn."""
    reward = make_reward(turn, 1.0)
    record = TurnRecord(
        inference_id=turn.inference_id,
        revision=0,
        reward=1.0,
        applied_revision=None,
        baseline=0.0,
        scale=1.0,
        credit=1.0,
        divergence=0.0,
    )
    return manifest.Manifest(
        version=base_ref(7),
        parent=base_ref(1),
        seed=0,
        settings="{}",
        turns=(record,),
        rewards=(reward,),
        ages_s=(1.0,),
        applied={},
    )


def test_drafts_are_as_good_as_the_page_says(tmp_path: Path) -> None:
    """The draft that docs/evals.md shows is one."""
    text = (Path(__file__).parents[3] / "docs" / "evals.md").read_text()
    (tmp_path / "drafts").mkdir()
    shown = next(part.partition("```")[0] for part in text.split("```toml\n") if part.startswith("[draft]"))
    (tmp_path / "drafts" / "one.toml").write_text(shown)
    (draft,) = read_suite(tmp_path).drafts.values()
    assert isinstance(draft, Draft)
