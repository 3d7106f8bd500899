"""Answers that were sampled under long instructions are learned under short ones, in their exact tokens."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kept_world import append, said
from logged_world import MODEL, make_reward, make_turn, tokenizer_digest

from core.errors import ConfigError
from core.events import Completion
from learner.batches.backlog import Bounds
from learner.midtraining.session_corpus import SessionCorpus
from learner.sequences.kept_out import KeptOut
from onward.commands.midtraining.internalise import internalise
from onward.replays.session_corpus import Choice, OtherInstructions, gather
from serving.rendering import load_renderer

RENDERER = load_renderer(MODEL)
LONG = {"role": "system", "content": "write short code, with a loop, and never ask back"}
ASKED = {"role": "user", "content": "[web] write total(xs): sum of xs"}


def turn_under(messages: list[dict[str, Any]], **changes: Any) -> Completion:
    return make_turn(0, messages=tuple(messages), prompt_token_ids=RENDERER.render(messages, ()), **changes)


def documents(*turns: Completion, instructions: str = "be brief") -> tuple[list[dict[str, Any]], dict[str, int]]:
    corpus = SessionCorpus(Bounds(tokenizer_digest(), 256), 0.5, KeptOut(), OtherInstructions(RENDERER, instructions))
    rewards = {turn.inference_id: make_reward(turn, 1.0) for turn in turns}
    return list(corpus.documents(turns, rewards)), dict(corpus.counts)


@pytest.mark.parametrize(
    ("instructions", "shown"), [("be brief", [{"role": "system", "content": "be brief"}, ASKED]), ("", [ASKED])]
)
def test_the_answer_stands_after_the_other_instructions(instructions: str, shown: list[dict[str, Any]]) -> None:
    turn = turn_under([LONG, ASKED])
    (document,), counts = documents(turn, instructions=instructions)
    prompt = RENDERER.render(shown, ())
    assert document["token_ids"] == prompt + turn.token_ids
    assert document["spans"] == [(len(prompt), len(prompt) + len(turn.token_ids))]
    assert counts == {"turns": 1, "taken": 1}


def test_a_later_turn_keeps_all_that_followed_the_instructions() -> None:
    first = turn_under([LONG, ASKED])
    between = (7, 8, 9)
    second = make_turn(
        1,
        session=first.session_id,
        parent_id=first.inference_id,
        turn_index=1,
        prompt_token_ids=(*first.prompt_token_ids, *first.token_ids, *between),
    )
    (document,), _ = documents(first, second)
    prompt = RENDERER.render([{**LONG, "content": "be brief"}, ASKED], ())
    assert document["token_ids"] == (*prompt, *first.token_ids, *between, *second.token_ids)


@pytest.mark.parametrize(
    "turn",
    [
        turn_under([ASKED]),
        msgspec.structs.replace(turn_under([LONG, ASKED]), prompt_token_ids=(5, 6, 7)),
    ],
    ids=["without instructions", "rendered by others"],
)
def test_a_turn_whose_instructions_are_not_found_is_counted(turn: Completion) -> None:
    found, counts = documents(turn)
    assert not found
    assert counts == {"turns": 1, "instructions_not_found": 1}


def test_a_model_learns_to_do_without_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command, on the log of a service: the answers become likelier under no instructions at all."""
    turns = [turn_under([LONG, ASKED], session=f"session-{number}") for number in range(4)]
    append(tmp_path / "data", [event for n, turn in enumerate(turns) for event in (turn, said(turn, 3 * n + 1))])
    internalise(tmp_path / "data", tmp_path / "out", init=MODEL, steps=4, rows=1, row_tokens=64, learning_rate=1e-3)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert capsys.readouterr().out.split()[-1] == report["weights_digest"]
    assert report["sessions"]["counts"] == {"turns": 4, "taken": 4}
    assert report["losses"][-1]["loss"] < report["losses"][0]["loss"]
    assert not (tmp_path / "out" / "sessions.jsonl").exists(), "the copy of users' words is deleted"


def test_sessions_without_instructions_are_refused(tmp_path: Path) -> None:
    turn = turn_under([ASKED])
    append(tmp_path / "data", [turn, said(turn, 1)])
    with pytest.raises(ConfigError, match="instructions_not_found"):
        gather(Choice(tmp_path / "data", None, None, 0.5, ""), MODEL, 256, tmp_path / "out", {}, again=False)
