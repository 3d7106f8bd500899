"""What was logged in the forms that trainers read: each file is loaded by the real library, and trained on by TRL."""

import csv
import json
import logging
import re
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, disable_progress_bars, load_dataset
from kept_world import append, archive, said
from logged_world import MODEL, START, make_reward, make_turn, sampled_answers
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

from api.feedback.edits import edits_to
from core.errors import ConfigError
from core.events import Completion, Outcome, Reward, Segment, ToolCall, Topic, VersionSpan
from core.ids import GroupId, Namespace, OutcomeId, UserHash, base_ref
from core.ports import TopicPartition
from core.unstored import without_words
from learner.versions.probe import probe_of_model
from onward.cli import app
from onward.replays.exports.choice import choice_of
from onward.replays.exports.conversations import Conversations
from onward.replays.exports.files import RowFile, digest_of
from onward.replays.exports.groups import GroupedTurn, Prompts
from onward.replays.exports.offline import export_form
from onward.replays.exports.rows import ConversationTurn
from onward.wiring.foundation import open_foundation
from serving.releases import ensure_anchor
from serving.rendering import load_renderer

SAID, KEPT = "def total(xs):\n    return sum(xs)", "def total(xs):\n    return sum(xs) + 1"
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
TRAINING: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "max_steps": 1,
    "per_device_train_batch_size": 2,
    "save_strategy": "no",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}


def asked(number: int, **changes: Any) -> Completion:
    """Return a turn with the words that its tokens are of; each is of a session and a group of its own."""
    message = {"role": "user", "content": f"[web] write total_{number}(xs): sum of xs"}
    fields: dict[str, Any] = {"messages": (message,), "group_id": GroupId(f"group-{number}")}
    turn = make_turn(number, **{**fields, **changes})
    parser = load_renderer(MODEL).parser(tools=(), after=turn.prompt_token_ids)
    text = parser.feed(turn.token_ids).content + parser.finish().content
    whole = (Segment(start=0, end=len(turn.token_ids), kind="answer"),)
    return msgspec.structs.replace(turn, text=text, segments=whole)


def written(number: int, **changes: Any) -> Completion:
    """Return a turn whose answer was not sampled, but is a text that a user can edit."""
    ids = load_renderer(MODEL).answer_tokens(SAID, is_first=True)
    spans = (VersionSpan(start=0, end=len(ids), version=base_ref(1)),)
    return asked(number, token_ids=ids, logprobs=(-0.5,) * len(ids), policy_versions=spans, **changes)


def with_call(number: int) -> Completion:
    renderer, call = load_renderer(MODEL), {"id": "c1", "function": {"name": "read", "arguments": "{}"}}
    messages = (
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "[web] fix it"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "x = 1", "tool_call_id": "c1"},
    )
    shown = [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "[web] fix it"},
        {"role": "assistant", "content": "", "tool_calls": [{**call, "type": "function"}]},
        {"role": "tool", "content": "x = 1", "tool_call_id": "c1"},
    ]
    return asked(
        number,
        messages=messages,
        tools=(TOOL,),
        prompt_token_ids=renderer.render(shown, [TOOL]),
        tool_calls=(ToolCall(id="c2", name="read", arguments='{"path": "a"}', index=0),),
        tags={"team": "blue", "shift": "late"},
        workload="ask",
        policy_versions=(VersionSpan(start=0, end=12, version=base_ref(2)),),
    )


def said_of(turn: Completion, name: str, value: Any, **changes: Any) -> Outcome:
    at = turn.received_at + timedelta(seconds=1)
    fields: dict[str, Any] = {"outcome_id": OutcomeId(f"{turn.inference_id}-{name}"), "session_id": None}
    fields |= {"inference_id": turn.inference_id, "namespace": turn.namespace, "observed_at": at, "received_at": at}
    return Outcome(**{**fields, "name": name, "value": value, **changes})


class World:
    """A directory in which each thing that can be of a turn is of one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        other = sampled_answers(24, 1.0)[2]
        self.good = asked(0, user_id=UserHash("u"), session_id="one")
        self.bad = asked(0, token_ids=other[1], logprobs=other[2])
        self.edited, self.called = written(7), with_call(8)
        self.private = msgspec.structs.replace(asked(3), learn=False)
        self.voided, self.held, self.silent = asked(4), asked(5, arm="holdback"), asked(6)
        self.redacted = without_words(asked(9), "redacted")
        self.raw = asked(10, messages=({"role": "prompt", "content": "def f(", "suffix": ")"},))
        self.flat, self.elsewhere = asked(2), asked(11, namespace=Namespace("acme"))
        self.gone = asked(12)
        edits = edits_to(load_renderer(MODEL), self.edited, None, KEPT)
        assert edits
        valued = ((self.good, -0.5), (self.bad, -1.0), (self.called, 2.0), (self.private, 1.0), (self.held, 1.0))
        valued += ((self.redacted, 1.0), (self.raw, 1.0), (self.flat, 0.0), (self.elsewhere, 1.0), (self.gone, 1.0))
        rewards = [make_reward(turn, value) for turn, value in valued]
        rewards += [msgspec.structs.replace(make_reward(self.voided, 0.0), void=True)]
        rewards += [msgspec.structs.replace(make_reward(self.edited, 0.25), edits=edits)]
        rewards += [make_reward(self.good, 1.0, revision=1)]  # the latest counts
        self._write(rewards)

    @property
    def turns(self) -> list[Completion]:
        return [each for name, each in vars(self).items() if isinstance(each, Completion) and name != "gone"]

    def _write(self, rewards: Sequence[Reward]) -> None:
        self.directory.mkdir()
        (self.directory / "onward.toml").write_text("[ingest]\npartitions = 2\n")
        first = said_of(self.good, "rating", 1.0, outcome_id=OutcomeId("first"))
        later = said_of(self.good, "rating", 4.0, supersedes=OutcomeId("first"))
        whole = said_of(self.good, "comment", "fine", inference_id=None, session_id=self.good.session_id, learn=False)
        with closing(open_foundation(self.directory)) as made:
            kept, not_kept = said_of(self.bad, "accepted", True), said_of(self.called, "accepted", False)
            made.log.append_blocking(Topic.TURNS, [*self.turns, first, later, whole, kept, not_kept])
            made.log.append_blocking(Topic.REWARDS, rewards)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    disable_progress_bars()
    logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("logged") / "service")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def exported(world: World, out: Path, form: Any, *choice: Any, **options: Any) -> tuple[dict[str, Any], Dataset]:
    """Return the counts, and the rows as they are loaded, unchanged."""
    done = export_form(world.directory, out, form, choice_of(*(choice or (None, None, None))), {}, **options)
    kind = {".parquet": "parquet", ".jsonl": "json"}[out.suffix]
    rows = load_dataset(kind, data_files=str(out), split="train", cache_dir=str(out.parent / "cache"))
    assert len(rows) == done.rows
    return done.counts, rows


LEFT_OUT = {"held_back": 1, "no_consent": 1, "no_conversation": 1, "not_stored": 1, "unrewarded": 1, "void": 1}


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_turns_are_exact_to_the_token_and_say_why_they_teach_nothing(world: World, tmp_path: Path, suffix: str) -> None:
    counts, rows = exported(world, tmp_path / f"turns{suffix}", "turns")
    assert counts == {"turns": 12, "rows": 12, "left_out": {"turn_gone": 1}, "missing": 0}
    found = {row["inference_id"]: row for row in rows}
    exact = found
    if suffix == ".jsonl":  # where `datasets` rounds numbers to ten places, and the file does not
        exact = {row["inference_id"]: row for row in lines_of(tmp_path / "turns.jsonl")}
    assert found.keys() == {turn.inference_id for turn in world.turns}
    for turn in world.turns:
        row = found[turn.inference_id]
        assert (tuple(row["prompt_token_ids"]), tuple(row["token_ids"])) == (turn.prompt_token_ids, turn.token_ids)
        assert exact[turn.inference_id]["logprobs"] == list(turn.logprobs)
        assert (row["text"], row["user"], row["session_id"]) == (turn.text, turn.user_id, turn.session_id)
        assert {each["name"]: each["value"] for each in row["tags"]} == turn.tags
    good, called = found[world.good.inference_id], found[world.called.inference_id]
    assert (good["reward"], good["reward_revision"], good["version"]) == (1.0, 1, 1)
    assert good["reward_parts"] == [{"name": "accepted", "value": 1.0}]
    said = {each["name"]: (each["value"], each["about"], each["learn"]) for each in good["outcomes"]}
    assert said == {"rating": ("4.0", "turn", True), "comment": ('"fine"', "session", False)}
    assert (called["version"], json.loads(called["tools"])) == (2, [TOOL])
    assert called["messages"][0]["content"] == "Be\nbrief."
    assert found[world.raw.inference_id]["messages"][0]["suffix"] == ")"
    wrong = {name: found[getattr(world, name).inference_id]["left_out"] for name in ("private", "held", "voided")}
    wrong |= {name: found[getattr(world, name).inference_id]["left_out"] for name in ("silent", "redacted", "raw")}
    assert wrong == {
        "private": "no_consent",
        "held": "held_back",
        "voided": "void",
        "silent": "unrewarded",
        "redacted": "not_stored",
        "raw": "no_conversation",
    }
    assert sum(row["left_out"] is None for row in rows) == 6
    assert found[world.voided.inference_id]["reward"] is found[world.silent.inference_id]["reward"] is None


def test_labels_pairs_and_texts_are_of_the_latest_reward_and_of_what_users_kept(world: World, tmp_path: Path) -> None:
    gone = {"turn_gone": 1}
    counts, rows = exported(world, tmp_path / "kto.jsonl", "kto")
    assert counts["left_out"] == {**LEFT_OUT, "zero_reward": 1, **gone}
    good = {world.good.inference_id, world.edited.inference_id, world.called.inference_id, world.elsewhere.inference_id}
    assert {row["inference_id"]: row["label"] for row in rows} == {
        **dict.fromkeys(good, True),
        world.bad.inference_id: False,
    }

    counts, rows = exported(world, tmp_path / "dpo.parquet", "dpo")
    assert counts["left_out"] == {**LEFT_OUT, "unpaired": 3, **gone}
    pairs = {row["source"]: row for row in rows}
    assert pairs.keys() == {"samples", "edit"}
    assert pairs["edit"]["chosen"] == [{"role": "assistant", "content": KEPT}]
    assert pairs["edit"]["rejected"] == [{"role": "assistant", "content": SAID}]
    assert (pairs["edit"]["reward_chosen"], pairs["edit"]["reward_rejected"]) == (None, 0.25)
    ids = [pairs["samples"][f"inference_id_{side}"] for side in ("chosen", "rejected")]
    assert ids == [world.good.inference_id, world.bad.inference_id]
    assert (pairs["samples"]["reward_chosen"], pairs["samples"]["reward_rejected"]) == (1.0, -1.0)

    counts, _ = exported(world, tmp_path / "sft.jsonl", "sft", least=0.5)
    assert counts["left_out"] == {**LEFT_OUT, "below_least_reward": 3, **gone}
    _, rows = exported(world, tmp_path / "all.jsonl", "sft")
    assert {row["source"]: row["messages"][-1]["content"] for row in rows}["edit"] == KEPT
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("form", "trainer", "config"),
    [("kto", KTOTrainer, KTOConfig), ("dpo", DPOTrainer, DPOConfig), ("sft", SFTTrainer, SFTConfig)],
)
def test_trl_trains_on_it_as_it_is(world: World, tmp_path: Path, form: Any, trainer: Any, config: Any) -> None:
    """What TRL makes of the prompt are the very tokens that the model was shown."""
    _, rows = exported(world, tmp_path / f"{form}.parquet", form)
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    args = config(output_dir=str(tmp_path / "runs"), **TRAINING)
    made = trainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer)
    shown = {turn.prompt_token_ids for turn in world.turns}
    for row in made.train_dataset:
        ids = tuple(row["input_ids"] if form == "sft" else row["prompt_ids"])
        assert any(ids[: len(prompt)] == prompt for prompt in shown if prompt) if form == "sft" else ids in shown
    assert made.train().global_step == 1


def test_trl_and_verl_read_the_prompts_of_one_file(world: World, tmp_path: Path) -> None:
    counts, rows = exported(world, tmp_path / "grpo.parquet", "grpo")
    assert counts["left_out"] == {**LEFT_OUT, "turn_gone": 1}
    shared = next(row for row in rows if len(row["rewards"]) == 2)
    assert shared["rewards"] == shared["extra_info"]["rewards"] == [1.0, -1.0]
    assert shared["inference_ids"] == [world.good.inference_id, world.bad.inference_id]
    assert [answer[0]["content"] for answer in shared["logged_completions"]] == [world.good.text, world.bad.text]

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    for row in rows:  # as verl's RLHFDataset and reward managers do
        tools = json.loads(row["tools"]) if row["tools"] else None
        ids = tokenizer.apply_chat_template(row["prompt"], tools, add_generation_prompt=True, return_dict=False)
        assert tuple(ids) in {turn.prompt_token_ids for turn in world.turns}
        assert row["data_source"] == f"onward/{row['ability']}"
        assert row["reward_model"].keys() == {"style", "ground_truth"}
    assert [row["extra_info"]["index"] for row in rows] == list(range(5))
    assert shared["reward_model"]["ground_truth"] == world.good.text

    seen: list[Any] = []

    def rewarded(completions: Any, logged_completions: Any, rewards: Any, **_: Any) -> list[float]:
        seen.extend(zip(completions, logged_completions, rewards, strict=True))
        return [1.0 * (place % 2) for place in range(len(completions))]

    args = GRPOConfig(str(tmp_path / "runs"), num_generations=2, max_completion_length=2, **TRAINING)
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    made = GRPOTrainer(model, rewarded, args=args, train_dataset=rows, processing_class=tokenizer)
    assert made.train().global_step == 1
    assert all(answers[0][0]["role"] == "assistant" and valued for _, answers, valued in seen)
    assert seen


@pytest.mark.parametrize(
    ("choice", "turns"),
    [
        ((None, None, None, "ask"), {"called"}),
        ((None, None, "acme"), {"elsewhere"}),
        ((None, None, None, None, "2"), {"called"}),
        ((None, None, None, None, "2-9"), {"called"}),
        ((None, None, None, None, None, ["team=blue", "shift=late"]), {"called"}),
        ((*[None] * 5, (), ["rating"]), {"good"}),
        ((*[None] * 5, (), ["rating=4"]), {"good"}),
        ((*[None] * 5, (), ["comment=fine", "rating"]), {"good"}),
        ((*[None] * 5, (), ["accepted=true"]), {"bad"}),
    ],
)
def test_options_choose_turns(world: World, tmp_path: Path, choice: Any, turns: set[str]) -> None:
    _, rows = exported(world, tmp_path / "turns.jsonl", "turns", *choice)
    assert {row["inference_id"] for row in rows} == {getattr(world, name).inference_id for name in turns}


def test_a_prompt_is_one_by_its_tokens_or_by_its_words_in_a_group() -> None:
    """A request that is tried again may be rendered anew."""
    group, words = {"group_id": GroupId("one")}, asked(1).messages
    first, other = asked(0), asked(1, **group)
    again = asked(2, messages=words, **group)  # other tokens
    between = asked(1, prompt_token_ids=first.prompt_token_ids, **group)  # the tokens of one, the words of the other
    prompts, talk = Prompts(), Conversations(load_renderer(MODEL))
    for turn in (first, other, again, asked(1, workload="ask"), between, asked(2, messages=words)):
        lesson = ConversationTurn(turn, make_reward(turn, 1.0), talk.prompt(turn) or [])
        prompts.add(lesson, GroupedTurn(turn.inference_id, 1.0))
    found = [[each.inference_id for each in group] for group in prompts.groups()]
    assert found[0] == [each.inference_id for each in (first, other, again, between)] + [found[0][-1]]
    assert [len(group) for group in found] == [5, 1]


def test_times_choose_turns_and_not_what_was_said_of_them(tmp_path: Path) -> None:
    """What came after the end counts, and what was deleted is counted as far as it was chosen."""
    turns = [asked(number) for number in range(4)]
    append(tmp_path / "service", [turns[0], turns[1], said_of(turns[1], "rating", 2.0), turns[3]])
    with closing(open_foundation(tmp_path / "service")) as made:
        made.log.append_blocking(Topic.REWARDS, [make_reward(turn, 1.0) for turn in turns])
    begin, end = ((START + timedelta(seconds=second)).isoformat() for second in (0.5, 1.5))
    done = export_form(tmp_path / "service", tmp_path / "a.jsonl", "turns", choice_of(begin, end, None), {})
    (row,) = lines_of(tmp_path / "a.jsonl")
    export_form(tmp_path / "service", tmp_path / "a.csv", "turns", choice_of(begin, end, None), {})
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as table:
        (cells,) = csv.DictReader(table)
    read = {
        name: json.loads(cell) if isinstance(row[name], list | dict | bool) else cell for name, cell in cells.items()
    }
    assert read == {
        name: "" if value is None else value if isinstance(value, list | dict | bool) else str(value)
        for name, value in row.items()
    }
    assert (row["inference_id"], row["reward"], row["outcomes"][0]["value"]) == (turns[1].inference_id, 1.0, "2.0")
    assert done.left_out == {}, "ids are of now, and so of another time than the turns"
    done = export_form(tmp_path / "service", tmp_path / "b.jsonl", "turns", choice_of(None, None, None), {})
    assert done.counts == {"turns": 3, "rows": 3, "left_out": {"turn_gone": 1}, "missing": 0}


def test_a_spreadsheet_runs_nothing_of_what_was_said(tmp_path: Path) -> None:
    formulas = [f"{sign}1+1" for sign in ("=", "+", "-", "@", "\t=", "\r=", "\n=", "\uff1d", "'=")]
    said = [*formulas, "'", "", "1", "a=1", 'x,"y"\nz']
    with RowFile(tmp_path / "a.csv", {"text": pa.string(), "reward": pa.float64()}) as file:
        file.write({"text": text, "reward": -0.5} for text in said)
        file.finish({})
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert all(row["text"].startswith("'") for row in rows[: len(formulas)])
    assert [row["text"].removeprefix("'") for row in rows] == said
    assert {row["reward"] for row in rows} == {"-0.5"}


def test_where_a_file_comes_from_stands_beside_it_and_is_the_same_from_the_archive(
    world: World, tmp_path: Path
) -> None:
    archived = World(tmp_path / "archived")
    before, after = tmp_path / "before.parquet", tmp_path / "after.parquet"
    export_form(archived.directory, before, "dpo", choice_of(None, None, None), {})
    with closing(open_foundation(archived.directory)) as made, made.store.work() as work:
        for topic in (Topic.TURNS, Topic.REWARDS):
            for source in (TopicPartition(topic, 0), TopicPartition(topic, 1)):
                for group in ("writer", "scorer", "learner"):
                    work.offsets.put(group, source, made.log.end(source))
    assert archive(archived.directory)["deleted"] > 10
    done = export_form(archived.directory, after, "dpo", choice_of(None, None, None), {})
    rows = pq.read_table(after)
    assert rows.equals(pq.read_table(before))
    told = json.loads(after.with_name("after.parquet.json").read_text())
    assert told.pop("digest") == digest_of(after)
    assert told == json.loads(pq.read_metadata(after).metadata[b"onward"])
    assert {name: told[name] for name in done.counts} == done.counts
    assert (told["form"], told["versions"], told["choice"]) == ("dpo", ["1", "2"], {})
    assert told["tokenizers"] == {world.good.tokenizer_digest: 12}
    assert told["received_at"][0] == START.isoformat()
    assert (len(told["model_digest"]), len(told["commit"]), told["seeds"]) == (64, 40, {})
    assert not list(tmp_path.glob("*.partial*")) + list(tmp_path.glob("*.scratch"))


def test_a_choice_of_nothing_writes_nothing_and_says_so(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "none.parquet"
    for options, why in (
        (["--as", "turns", "--workload", "nobody's"], "no turns --workload nobody's; nothing was written"),
        (["--as", "turns", "--outcome", "rating=1"], "no turns --outcome rating=1; nothing was written"),
        (["--as", "dpo", "--namespace", "acme"], "none of 1 turns makes a row of --as dpo --namespace acme"),
    ):
        with pytest.raises(SystemExit) as ended:
            app(["export", str(world.directory), "--out", str(out), *options], result_action="return_value")
        told = capsys.readouterr()
        assert ended.value.code == 1
        assert (json.loads(told.out)["rows"], list(tmp_path.iterdir())) == (0, [])
        assert why in told.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--as", "ppo"], "--as ppo: there are turns, kto, dpo, sft, grpo"),
        (["--as", "kto", "--version", "9-2"], "--version 9-2: 9 comes after 2"),
        (["--as", "kto", "--version", "new"], "--version new: want the number of a version"),
        (["--as", "kto", "--tag", "blue"], "--tag blue: want NAME=VALUE"),
        (["--as", "kto", "--outcome", "rating="], "--outcome rating=: want NAME or NAME=VALUE"),
        (["--as", "kto", "--least-reward", "1"], "--least-reward: only with --as sft"),
        (["--as", "kto", "--format", "jsonl"], "--format: not with --as"),
        (["--workload", "write"], "--workload: not with an export without --as"),
        (["--as", "kto", "--out", "rows.xml"], r"--out rows\.xml: with --as, want a file that ends in"),
        (["--out", "rows.csv"], r"--out rows\.csv: events have no columns in common"),
        (["--as", "kto", "--out", "{there}"], "it is there already"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(
    world: World, tmp_path: Path, options: list[str], why: str
) -> None:
    (tmp_path / "there.jsonl.json").write_text("{}")
    given = [each.format(there=tmp_path / "there.jsonl") for each in options]
    out = [] if "--out" in options else ["--out", str(tmp_path / "rows.jsonl")]
    with pytest.raises(ConfigError, match=why):
        app(["export", str(world.directory), *out, *given], result_action="return_value")
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl.json"]


# ------------------------------------------------------------------------------------------ docs/offline.md

PAGE = Path(__file__).resolve().parents[3] / "docs" / "offline.md"
PARSED = ("promote", "evals")
"""Commands of the page that speak to running services: here they are read, and not run. All others are run."""
HELD_BACK = {"propose": "it waits: `onward promote 2`", "ope": "judged by 0 of 0 turns"}
"""They exit with 1 and say so: so few users cannot tell whether the candidate is better, and none came since."""


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [block for kind, block in found if kind == language]


@pytest.fixture
def week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory as the page has it: a logged week in `data`, and the model that spoke."""
    at = datetime(2026, 11, 22, tzinfo=UTC)
    turns = [asked(number, received_at=at + timedelta(seconds=number)) for number in range(24)]
    turns += [asked(1, received_at=at, token_ids=turns[2].token_ids, logprobs=turns[2].logprobs)]
    events = [event for number, turn in enumerate(turns) for event in (turn, said(turn, number))]
    append(tmp_path / "data", events)
    with closing(open_foundation(tmp_path / "data")) as made:
        rewards = [make_reward(turn, 1.0 if number % 3 else -1.0) for number, turn in enumerate(turns)]
        made.log.append_blocking(Topic.REWARDS, rewards)
        probe = partial(probe_of_model, device="cpu")
        ensure_anchor(made.store, made.log, made.weights, made.blobs, made.model, "tiny", "local", probe)
    monkeypatch.chdir(tmp_path)
    Path("MODEL").symlink_to(MODEL)
    return tmp_path


def test_what_the_page_shows_can_be_done(week: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line.split()[1:] for block in blocks("sh") for line in block.splitlines() if line.startswith("onward ")]
    assert len(commands) == 14
    for command in (each for each in commands if each[0] == "export"):
        app(command, result_action="return_value")
        assert json.loads(capsys.readouterr().out)["rows"] > 0
    (code,) = blocks("python")
    options = ", ".join(f"{name}={value!r}" for name, value in TRAINING.items())  # a GPU's are the usual ones
    exec(code.replace('DPOConfig("runs"', f'DPOConfig("runs", {options}'), {})
    for command in (each for each in commands if each[0] != "export"):
        if command[0] in PARSED:
            app.parse_args(command, exit_on_error=False)
        elif command[0] in HELD_BACK:
            with pytest.raises(SystemExit) as ended:
                app(command, result_action="return_value")
            assert ended.value.code == 1
            assert HELD_BACK[command[0]] in capsys.readouterr().out
        else:
            app(command, result_action="return_value")
    assert (week / "trial" / "onward.toml").exists()
    assert (week / "candidate" / "report.json").exists()
    judged = [pq.read_table(week / name / "held_out.parquet") for name in ("candidate", "other")]
    assert judged[0]["inference_id"] == judged[1]["inference_id"]
    assert judged[0]["log_ratio"] != judged[1]["log_ratio"], "they are other candidates, on the same turns"
