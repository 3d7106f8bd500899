"""Recorded sessions of real clients, sent again: each turn must come to its session, its parent and its purpose.

The clients' requests are as they were, but for the ids that the service had given, which are those of the replay. The
answers are the recorded ones, through the renderer of the shipped model: see `tests/clients/sessions.md`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from api_harness import MODEL, Service, serve
from scripted_policy import Script
from tokenizers import Tokenizer

from core.events import Completion
from onward.directory.layout import SHIPPED_MODEL
from serving.rendering import load_renderer

SESSIONS = sorted((Path(__file__).parents[2] / "clients" / "sessions").glob("*.jsonl"))
TOKENIZER = Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json"))
RENDERER = load_renderer(SHIPPED_MODEL)


@dataclass
class Found:
    """What became of a file's turns: lines whose session was missed, or taken from another, and other faults."""

    turns: int = 0
    missed: list[int] = field(default_factory=list)
    false: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    purposes: list[int] = field(default_factory=list)


@pytest.fixture(scope="module")
def replayed_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("api") / "service", renderer=RENDERER) as service:
        service.policy.context_length = 100_000  # type: ignore[misc]
        yield service


def test_there_are_ten_sessions_and_more() -> None:
    assert len(SESSIONS) >= 10


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_each_turn_comes_to_its_session(replayed_at: Service, path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = compare(lines, replay(replayed_at, lines))
    assert found == Found(turns=len(lines))


def replay(service: Service, lines: list[dict[str, Any]]) -> list[Completion]:
    ids: dict[str, str] = {}
    turns = []
    for line in lines:
        answer = line["answer"]
        service.policy.scripts.append(Script(tokens_of(answer)))
        body = json.dumps({**line["body"], "model": MODEL})
        for old, new in ids.items():
            body = body.replace(old, new)
        response = service.http.post(line["path"], content=body, headers=line["headers"])
        assert response.status_code == 200, response.text
        turn = service.turn(response.headers["x-onward-inference-id"])
        assert [call.name for call in turn.tool_calls] == [call["name"] for call in answer["tool_calls"]]
        ids[answer["inference_id"]] = turn.inference_id
        ids |= {old["id"]: new.id for old, new in zip(answer["tool_calls"], turn.tool_calls, strict=True)}
        turns.append(turn)
    return turns


def tokens_of(answer: dict[str, Any]) -> tuple[int, ...]:
    calls = [
        f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>'
        for call in answer["tool_calls"]
    ]
    text = answer["text"] + "\n".join(calls)
    return (*TOKENIZER.encode(text, add_special_tokens=False).ids, RENDERER.stop_token_ids[0])


def compare(lines: list[dict[str, Any]], turns: list[Completion]) -> Found:
    found = Found(turns=len(turns))
    sessions: dict[str, str] = {}
    for place, (line, turn) in enumerate(zip(lines, turns, strict=True)):
        truth = line["truth"]
        expected = sessions.setdefault(truth["session"], turn.session_id)
        others = {session for name, session in sessions.items() if name != truth["session"]}
        parent = None if truth["parent"] is None else turns[truth["parent"]].inference_id
        if turn.session_id in others:
            found.false.append(place)
        elif turn.session_id != expected:
            found.missed.append(place)
        if turn.parent_id != parent:
            found.parents.append(place)
        if turn.purpose != truth["purpose"]:
            found.purposes.append(place)
    return found
