"""What a past taught leaves as rows: whole, counted, in one order, and nothing that must stay."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from told_past import LOGPROB, START, SUM, a_week, edit_of, keep, renderer, said_of, tokens_of, turn

from core.errors import ConfigError
from core.events import Completion, Outcome, Segment, ToolCall, Topic
from core.ids import GroupId, Namespace, SessionId, UserHash
from core.operations.exclusions import Relearning, Selection
from onward.cli import app
from onward.replays.exports.files import manifest_of
from onward.replays.exports.samples import Wanted, export_samples
from onward.wiring.foundation import open_foundation

VOIDING = """
[outcomes.accepted]
type = "boolean"
weight = 1
decides = true

[outcomes.faulty]
type = "boolean"
role = "void"
"""
Rows = list[dict[str, Any]]


def exported(directory: Path, out: Path, form: str, **options: Any) -> tuple[dict[str, Any], Rows]:
    told = export_samples(directory, out, Wanted(form, **options), {})
    if out.suffix == ".jsonl":
        return told, [json.loads(line) for line in out.read_text().splitlines()]
    return told, pq.read_table(out).to_pylist()


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keep(tmp_path_factory.mktemp("kept") / "week", a_week())


def names(rows: Rows, column: str = "inference_id") -> list[int]:
    return [int(row[column][-12:], 16) for row in rows]


# ------------------------------------------------------------------------------------------ forms


def test_good_answers_leave_as_messages_and_as_tokens(week: Path, tmp_path: Path) -> None:
    told, rows = exported(week, tmp_path / "sft.parquet", "sft")
    assert names(rows) == [0, 2, 6], "in the order of time"
    assert told["left_out"] == {"no_consent": 1, "not_good": 1, "not_stored": 1, "raw_prompt": 1, "unrewarded": 1}
    assert told["turns"] == 8 == told["rows"] + sum(told["left_out"].values())
    first, edited, _ = rows
    assert first["prompt"] == [{"role": "user", "content": "sum"}]
    assert first["completion"] == [{"role": "assistant", "content": SUM}]
    assert first["messages"] == first["prompt"] + first["completion"]
    assert tuple(first["token_ids"]) == (*tokens_of(SUM), renderer().stop_token_ids[0])
    assert first["logprobs"] == [LOGPROB] * len(first["token_ids"])
    assert first["outcomes"] == [{"name": "accepted", "value": "true"}]
    assert edited["origin"] == "edited"
    assert edited["completion"][0]["content"] == "def total(ys):\n    return sum(xs)"


def test_tokens_that_a_user_wrote_have_no_log_probability(week: Path, tmp_path: Path) -> None:
    _, rows = exported(week, tmp_path / "sft.parquet", "sft", where=("outcome = edited",))
    (row,) = rows
    theirs = tokens_of(" sum(xs)")
    unknown = [place for place, each in enumerate(row["logprobs"]) if each is None]
    assert tuple(row["token_ids"][place] for place in unknown) == theirs
    assert len(row["logprobs"]) == len(row["token_ids"]) == len(theirs) + sum(x is not None for x in row["logprobs"])


def test_exact_tokens_have_labels_where_they_were_sampled(tmp_path: Path) -> None:
    made = turn(0, "sum", SUM, segments=(Segment(start=0, end=2, kind="forced"),))
    directory = keep(tmp_path / "week", [made, said_of(made, "accepted")])
    _, (row,) = exported(directory, tmp_path / "tokens.jsonl", "tokens")
    asked = len(made.prompt_token_ids)
    assert tuple(row["input_ids"]) == made.prompt_token_ids + made.token_ids
    assert row["labels"] == [-100] * (asked + 2) + list(made.token_ids[2:])
    assert row["logprobs"][:asked] == [None] * asked
    assert row["logprobs"][asked : asked + 3] == [None, None, LOGPROB]


def test_raw_completions_leave_as_tokens(week: Path, tmp_path: Path) -> None:
    _, rows = exported(week, tmp_path / "tokens.jsonl", "tokens")
    assert names(rows) == [0, 2, 6, 7]


def test_every_judged_answer_has_a_label(week: Path, tmp_path: Path) -> None:
    _, rows = exported(week, tmp_path / "kto.jsonl", "kto", good=0.3)
    assert [(number, row["label"]) for number, row in zip(names(rows), rows, strict=True)] == [
        (0, True),
        (1, False),
        (2, True),
        (6, True),
    ]
    assert rows[2]["completion"][0]["content"] == "def total(ys):\n    return ys", "as it was sampled"


def test_pairs_come_of_edits_and_of_rewards(week: Path, tmp_path: Path) -> None:
    told, rows = exported(week, tmp_path / "pairs.parquet", "pairs")
    sources = zip(names(rows, "chosen_inference_id"), names(rows, "rejected_inference_id"), rows, strict=True)
    assert [(chosen, rejected, row["source"]) for chosen, rejected, row in sources] == [
        (0, 1, "same_request"),
        (2, 2, "edit"),
    ]
    best, edit = rows
    assert (best["chosen_reward"], best["rejected_reward"], best["margin"]) == (1.0, -0.5, 1.5)
    assert (edit["chosen_reward"], edit["margin"]) == (None, None), "nobody rewarded what the user wrote"
    assert edit["chosen"][0]["content"] == "def total(ys):\n    return sum(xs)"
    assert edit["rejected"][0]["content"] == "def total(ys):\n    return ys"
    assert told["left_out"] == {"alone": 1, "no_consent": 1, "not_stored": 1, "raw_prompt": 1, "unrewarded": 1}


def test_choices_regenerated_answers_and_repeated_ones_are_told_apart(tmp_path: Path) -> None:
    session, group = SessionId("s"), GroupId("g")
    first, second = (turn(n, "sum", f"x = {n}", session_id=session, group_id=group) for n in (0, 1))
    again = turn(2, "sum", "x = 2", session_id=session)
    same = turn(3, "sum", "x = 0")  # as the first one
    foreign = turn(4, "sum", "x = 9", namespace=Namespace("acme"))
    turns = (first, second, again, same, foreign)
    values = (
        ("accepted", True),
        ("rejected", True),
        ("partially_accepted", 0.4),
        ("partially_accepted", 0.5),
        ("accepted", True),
    )
    said = [said_of(made, *value) for made, value in zip(turns, values, strict=True)]
    directory = keep(tmp_path / "week", [*turns, *said])
    told, rows = exported(directory, tmp_path / "a.jsonl", "pairs")
    assert [(row["source"], row["margin"]) for row in rows] == [("choices", 1.75)], (
        "asked for again, the rejected one lost more"
    )
    assert rows[0]["chosen_reward"] == 0.75, "the mean of 1 and 0.5"
    assert told["left_out"] == {"alone": 1, "no_better": 1, "repeated": 1}, "another namespace's answer is no match"
    told, rows = exported(directory, tmp_path / "b.jsonl", "pairs", where=("outcome != rejected",))
    assert [(row["source"], row["margin"]) for row in rows] == [("regenerated", pytest.approx(0.35))]
    with pytest.raises(ConfigError, match="no turn to export: 5 turns, 1 alone, 3 no_better, 1 repeated"):
        exported(directory, tmp_path / "c.jsonl", "pairs", margin=1.75)
    assert not (tmp_path / "c.jsonl").exists()


def test_rewards_have_the_columns_of_verl_and_the_worth_of_each_token(week: Path, tmp_path: Path) -> None:
    _, rows = exported(week, tmp_path / "rewards.parquet", "rewards")
    assert names(rows) == [0, 1, 2, 6]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]
    assert [row["reward_model"]["ground_truth"] for row in rows] == [
        SUM,
        "",
        "def total(ys):\n    return sum(xs)",
        "len(xs)",
    ]
    assert (rows[3]["data_source"], rows[3]["ability"]) == ("onward/chat", "chat")
    for row in (rows[0], rows[1], rows[3]):
        assert row["token_rewards"] == [row["reward"]] * len(row["token_ids"])
    assert len(rows[2]["credits"]) == 3, "before, within and behind what the user changed"
    for credit in rows[2]["credits"]:
        span = slice(credit["start"], credit["end"])
        assert rows[2]["token_rewards"][span] == [credit["value"]] * (credit["end"] - credit["start"])
    assert rows[2]["edits"][0]["token_ids"] == list(tokens_of(" sum(xs)"))
    assert rows[1]["components"] == [{"name": "rejected", "value": -0.5}]


def test_calls_and_tools_keep_their_form(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
    call = ToolCall(id="call_1", name="run", arguments='{"line": "ls"}', index=0)
    made = turn(0, "list", "", tools=(tool,), tool_calls=(call,))
    history = (*made.messages, {"role": "assistant", "tool_calls": [_as_sent(call)]}, _answer_to(call, "a.py"))
    after = turn(1, "", "There is a.py.", messages=history, tools=(tool,))
    plain = turn(2, "sum", SUM)
    directory = keep(
        tmp_path / "week", [each for one in (made, after, plain) for each in (one, said_of(one, "accepted"))]
    )
    _, rows = exported(directory, tmp_path / "sft.jsonl", "sft")
    assert json.loads(rows[0]["tools"]) == [tool]
    assert rows[0]["completion"] == [{"role": "assistant", "content": "", "tool_calls": [_as_sent(call)]}]
    assert rows[1]["prompt"][1:] == [{"content": "", **history[1]}, history[2]]
    assert rows[2]["tools"] is None
    _, rows = exported(directory, tmp_path / "plain.jsonl", "sft", where=("session = session-2",))
    assert "tools" not in rows[0]


def _as_sent(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _answer_to(call: ToolCall, text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call.id}


# ------------------------------------------------------------------------------------------ what stays


def test_what_is_void_or_of_another_tokenizer_or_empty_stays(tmp_path: Path) -> None:
    good = turn(0, "sum", SUM)
    void, alien, empty = (
        turn(1, "b", "x"),
        turn(2, "c", "x", tokenizer_digest="another"),
        turn(3, "d", "x", token_ids=(), logprobs=()),
    )
    said: list[Outcome] = [said_of(each, "accepted") for each in (good, void, alien, empty)]
    said.append(said_of(void, "faulty"))
    directory = keep(tmp_path / "week", [good, void, alien, empty, *said])
    (directory / "rewards.toml").write_text(VOIDING)
    told, _ = exported(directory, tmp_path / "sft.jsonl", "sft")
    assert told["left_out"] == {"empty": 1, "other_tokenizer": 1, "void": 1}


def test_solutions_of_suites_stay_also_where_a_user_wrote_them(tmp_path: Path) -> None:
    solution = "def total(xs):\n    found = 0\n    for x in xs:\n        found = found + x\n    return found"
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "cases.toml").write_text(
        "[[case]]\nname = 'sum'\nprompt = 'sum'\nchecker = { kind = 'contains', all = ['def'] }\n"
        f"solution = '''{solution}'''\n"
    )
    recalled, edited, fine = turn(0, "a", solution), turn(1, "b", "pass"), turn(2, "c", "x = 1")
    edit = edit_of(edited, "pass", solution)
    said = [said_of(recalled, "accepted"), said_of(edited, "edited", 0.1, edits=(edit,)), said_of(fine, "accepted")]
    settings = f"[learner]\nenabled = false\n[learner.admission]\nkeep_out = '{suite}'\n"
    directory = keep(tmp_path / "week", [recalled, edited, fine, *said], settings)
    for form in ("sft", "tokens"):
        told, rows = exported(directory, tmp_path / f"{form}.jsonl", form)
        assert names(rows) == [2]
        assert told["left_out"] == {"eval_solution": 2}
    (check,) = told["suites"]
    assert (check["cases"], check["compared"], check["left_out"]) == (1, 3, 2)


@pytest.mark.parametrize(
    ("lifted_at", "expected", "left_out"),
    [
        (START, [0, 2, 3], {"not_good": 1}),
        (START + timedelta(days=365), [0, 3], {"excluded": 2}),
    ],
    ids=["lifted before they were rewarded", "lifted after they were rewarded"],
)
def test_turns_that_were_excluded_when_they_were_rewarded_stay_in_all_forms(
    tmp_path: Path, lifted_at: datetime, expected: list[int], left_out: dict[str, int]
) -> None:
    taught = [turn(number, "sum", f"x = {number}") for number in range(4)]
    values = (("accepted", True), ("rejected", True), ("accepted", True), ("accepted", True))
    said = [said_of(made, *value) for made, value in zip(taught, values, strict=True)]
    directory = keep(tmp_path / "week", [*taught, *said])
    with closing(open_foundation(directory)) as service, service.store.work() as work:
        chosen = Selection(namespace=Namespace("default"), users=(UserHash("user-1"), UserHash("user-2")))
        order = work.exclusions.give(chosen, "they lie", "ada", START)
        work.exclusions.report(order, Relearning(began_at=START, ended_at=START))  # a learner has seen it
    told, rows = exported(directory, tmp_path / "sft.jsonl", "sft")
    assert (names(rows), told["left_out"]) == ([0, 3], {"excluded": 2})
    with pytest.raises(ConfigError, match="no turn to export: 4 turns, 2 excluded, 2 no_better"):
        exported(directory, tmp_path / "pairs.jsonl", "pairs")
    with closing(open_foundation(directory)) as service, service.store.work() as work:
        work.exclusions.lift(order, "they do not", "ada", lifted_at)
    told, rows = exported(directory, tmp_path / "again.jsonl", "sft")
    assert (names(rows), told["left_out"]) == (expected, left_out)


def test_a_withdrawn_outcome_is_none_and_an_amended_one_is_the_last(tmp_path: Path) -> None:
    made = turn(0, "sum", "def total(ys): ys")
    first = said_of(made, "edited", 0.5, edits=(edit_of(made, "ys", "xs"),))
    later = said_of(made, "edited", 0.25, edits=(edit_of(made, "def", "async def"),), supersedes=first.outcome_id)
    later = msgspec.structs.replace(later, outcome_id=f"{first.outcome_id}-2")
    gone = said_of(made, "comment", None, supersedes=f"{made.inference_id}-comment", withdrawn=True)
    gone = msgspec.structs.replace(gone, outcome_id="gone")
    directory = keep(tmp_path / "week", [made, first, said_of(made, "comment", "no"), later, gone])
    _, (row,) = exported(directory, tmp_path / "sft.jsonl", "sft")
    assert row["completion"][0]["content"] == "async def total(ys): ys"
    assert row["outcomes"] == [{"name": "edited", "value": "0.25"}]


# ------------------------------------------------------------------------------------------ choice, order, manifest


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["workload = chat"], [6]),
        (["tag.team = web"], [6]),
        (["outcome.edited > 0.5", "version = 1"], [2]),
        (["time < 2026-11-16T09:02:00Z"], [0]),
        (["reward >= 1"], [0, 6]),
    ],
)
def test_where_chooses(week: Path, tmp_path: Path, where: Sequence[str], expected: list[int]) -> None:
    told, rows = exported(week, tmp_path / "sft.jsonl", "sft", where=tuple(where))
    assert names(rows) == expected
    assert told["where"] == tuple(where)
    assert told["left_out"]["not_chosen"] > 0
    assert told["turns"] == told["rows"] + sum(told["left_out"].values())


def test_nobody_is_asked_about_whoever_did_not_consent(week: Path, tmp_path: Path) -> None:
    """Their turns are counted as such, whatever is asked for."""
    told, _ = exported(week, tmp_path / "sft.jsonl", "sft", where=("session in (session-0, session-3, session-4)",))
    assert told["left_out"] == {"no_consent": 1, "not_chosen": 5, "not_stored": 1}


def test_the_same_past_makes_the_same_rows_in_both_formats_and_whatever_its_order(week: Path, tmp_path: Path) -> None:
    jumbled = keep(tmp_path / "jumbled", sorted(a_week(), key=lambda event: isinstance(event, Outcome)))
    for form in ("sft", "tokens", "kto", "pairs", "rewards"):
        lines, line_rows = exported(week, tmp_path / f"{form}.jsonl", form)
        table, table_rows = exported(week, tmp_path / f"{form}.parquet", form)
        other, _ = exported(jumbled, tmp_path / f"other-{form}.jsonl", form)
        assert line_rows == table_rows
        assert lines["rows_digest"] == table["rows_digest"] == other["rows_digest"]
        assert lines["file_digest"] == other["file_digest"]
        assert list(lines["columns"]) == list(table_rows[0]), "the manifest names the columns"
        assert json.loads(manifest_of(tmp_path / f"{form}.parquet").read_text()) == _as_json(table)


def _as_json(told: dict[str, Any]) -> Any:
    return json.loads(json.dumps(told))


def test_another_spec_gives_other_rewards(week: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('[outcomes.rejected]\ntype = "boolean"\nweight = 2.0\ndecides = true\n')
    _, rows = exported(week, tmp_path / "sft.jsonl", "sft", spec=spec)
    assert [(names([row])[0], row["reward"]) for row in rows] == [(1, 1.0)], "what the spec clips"


def test_a_gap_in_the_log_is_told(tmp_path: Path) -> None:
    directory = keep(tmp_path / "week", a_week())
    with closing(sqlite3.connect(directory / "log.db")) as connection:
        gone = "DELETE FROM records WHERE topic = ? AND partition = 0 AND record_offset = 1"
        assert connection.execute(gone, (Topic.TURNS,)).rowcount == 1
        connection.commit()
    told, _ = exported(directory, tmp_path / "sft.jsonl", "sft")
    assert told["missing"] == 1


# ------------------------------------------------------------------------------------------ the command


def test_the_command_prints_what_it_left_out(week: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", str(week), "--out", str(tmp_path / "kto.jsonl"), "--as", "kto", "--where", "workload = write"]
    app(command, result_action="return_value")
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["left_out"]["not_chosen"]) == (3, 1)
    assert told["rows_digest"] == json.loads((tmp_path / "kto.jsonl.manifest.json").read_text())["rows_digest"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--as", "sft", "--out", "OUT"], "--out .*OUT: with --as sft want a name that ends in .parquet or .jsonl"),
        (["--as", "sft", "--out", "OUT.jsonl", "--format", "jsonl"], "--format: not with --as sft"),
        (["--out", "OUT.jsonl", "--where", "reward > 0"], "--where: not with --as events"),
        (["--out", "OUT.jsonl", "--good", "1"], "--good: not with --as events"),
        (["--as", "kto", "--out", "OUT.jsonl", "--margin", "1"], "--margin: only with --as pairs"),
        (["--as", "pairs", "--out", "OUT.jsonl", "--good", "1"], "--good: not with --as pairs"),
        (["--as", "pairs", "--out", "OUT.jsonl", "--margin", "-1"], "--margin -1: want 0 or more"),
        (["--as", "sft", "--out", "OUT.jsonl", "--good", "inf"], "--good inf: want a number"),
        (["--as", "sft", "--out", "OUT.jsonl", "--where", "speed > 1"], "there is no field 'speed'"),
        (["--as", "sft", "--out", "OUT.jsonl", "--where", "reward > 9"], "no turn to export: 8 turns, .* 6 not_chosen"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(
    week: Path, tmp_path: Path, options: Sequence[str], why: str
) -> None:
    given = [each.replace("OUT", str(tmp_path / "OUT")) for each in options]
    with pytest.raises(ConfigError, match=why):
        app(["export", str(week), *given], result_action="return_value")
    assert not list(tmp_path.iterdir())


def test_what_was_there_before_is_not_written_over(week: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"mine\.jsonl: it is there already"):
        exported(week, tmp_path / "mine.jsonl", "sft")


def test_where_nothing_can_be_written_it_says_so_before_it_scores(week: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command in (["export", "--as", "sft"], ["export"], ["replay"]):
        with pytest.raises(ConfigError, match=r"^--out .*file/x.jsonl: Not a directory$"):
            app([*command, str(week), "--out", str(tmp_path / "file" / "x.jsonl")], result_action="return_value")


@pytest.mark.parametrize("command", [["export", "--as", "sft"], ["export"], ["replay"]], ids=" ".join)
def test_a_directory_without_a_past_is_refused_and_left_as_it_was(command: list[str], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    before = empty.stat()
    with pytest.raises(ConfigError, match=r"empty: no service has run in it"):
        app([*command, str(empty), "--out", str(tmp_path / "x.jsonl")], result_action="return_value")
    assert [each.name for each in tmp_path.rglob("*")] == ["empty"]
    assert (empty.stat().st_mode, empty.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_no_manifest_is_there_before_its_file(week: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sft.jsonl"
    manifest_of(out).write_text("of a file that was deleted")
    steps: list[tuple[str, bool]] = []
    rename = Path.rename

    def watched(self: Path, target: Path) -> Path:
        steps.append((Path(target).name, manifest_of(out).exists()))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    exported(week, out, "sft")
    assert steps == [("sft.jsonl", False), ("sft.jsonl.manifest.json", False)]
    assert json.loads(manifest_of(out).read_text())["file"] == "sft.jsonl"


def test_what_a_killed_export_left_of_users_words_goes_with_the_next(week: Path, tmp_path: Path) -> None:
    left = tmp_path / "sft.jsonl.scored.partial"
    left.mkdir()
    (left / "store.db").write_text("what users said")
    exported(week, tmp_path / "sft.jsonl", "sft")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sft.jsonl", "sft.jsonl.manifest.json"]


def test_completions_of_the_past_are_what_they_were(week: Path) -> None:
    """The test's own past is of real tokens: what they say is the answer."""
    for made in (event for event in a_week() if isinstance(event, Completion) and event.unstored is None):
        parser = renderer().parser(tools=(), after=made.prompt_token_ids)
        assert "".join(part.content for part in (parser.feed(made.token_ids), parser.finish())) == made.text
