"""A past made of words: requests and answers of the shipped model's tokenizer, with what was said of them.

Nothing is sampled and no tensor library is imported: log-probabilities are made up, ids and times are the same in every
run."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from core.events import Completion, Event, LogprobSpace, Outcome, Sampling, TextEdit, Topic, VersionSpan
from core.ids import GroupId, InferenceId, Namespace, OutcomeId, SessionId, UserHash, base_ref
from core.unstored import without_words
from onward.directory.layout import SHIPPED_MODEL
from onward.wiring.foundation import open_foundation
from serving.rendering import ModelRenderer, load_renderer

START = datetime(2026, 11, 16, 9, tzinfo=UTC)
LOGPROB = -0.25
SUM = "def total(xs):\n    return sum(xs)"
QUIET = "[learner]\nenabled = false\n"


@lru_cache
def renderer() -> ModelRenderer:
    return load_renderer(SHIPPED_MODEL)


def tokens_of(text: str) -> tuple[int, ...]:
    return renderer().render_text(text, None)


def turn(number: int, asked: str, said: str, **changes: Any) -> Completion:
    """Return the turn of that number in the past, a minute after the one before."""
    messages = changes.pop("messages", ({"role": "user", "content": asked},))
    token_ids = (*tokens_of(said), renderer().stop_token_ids[0])
    fields: dict[str, Any] = {
        "inference_id": InferenceId(f"019a0000-0000-7000-8000-{number:012x}"),
        "session_id": SessionId(f"session-{number}"),
        "turn_index": 0,
        "parent_id": None,
        "group_id": GroupId(f"group-{number}"),
        "namespace": Namespace("default"),
        "user_id": UserHash(f"user-{number % 4}"),
        "workload": "write",
        "purpose": "turn",
        "received_at": START + timedelta(minutes=number),
        "messages": messages,
        "sampling": Sampling(temperature=1.0),
        "prompt_token_ids": renderer().render(messages, []),
        "token_ids": token_ids,
        "logprobs": (LOGPROB,) * len(token_ids),
        "logprob_space": LogprobSpace(temperature=1.0),
        "trainable": True,
        "policy": "onward-tiny",
        "policy_versions": (VersionSpan(start=0, end=len(token_ids), version=base_ref(1)),),
        "tokenizer_digest": renderer().tokenizer_digest,
        "renderer": "chat-template",
        "finish_reason": "stop",
        "text": said,
        "delivered_tokens": len(token_ids),
        "latency_ms": 1.0,
    }
    return Completion(**fields | changes)


def said_of(turn: Completion, name: str, value: Any = True, **changes: Any) -> Outcome:
    fields: dict[str, Any] = {
        "outcome_id": OutcomeId(f"{turn.inference_id}-{name}"),
        "inference_id": turn.inference_id,
        "session_id": None,
        "namespace": turn.namespace,
        "name": name,
        "value": value,
        "observed_at": turn.received_at + timedelta(seconds=20),
        "received_at": turn.received_at + timedelta(seconds=20),
    }
    return Outcome(**fields | changes)


def edit_of(turn: Completion, old: str, new: str) -> TextEdit:
    """Return the edit that puts `new` where the answer's tokens say `old`, which is made of whole tokens."""
    token_ids, wanted = turn.token_ids, tokens_of(old)
    starts = range(len(token_ids) - len(wanted) + 1)
    start = next(place for place in starts if token_ids[place : place + len(wanted)] == wanted)
    return TextEdit(start=start, end=start + len(wanted), token_ids=tokens_of(new))


def keep(directory: Path, events: Sequence[Event], settings: str = QUIET) -> Path:
    """Log the events, in their order, in a service's directory."""
    directory.mkdir(exist_ok=True)
    (directory / "onward.toml").write_text(settings)
    foundation = open_foundation(directory)
    foundation.log.append_blocking(Topic.TURNS, events)
    foundation.close()
    return directory


def a_week() -> list[Event]:
    """Return turns 0 to 5 to one request, 6 and 7 to others, with what was said of them."""
    good, bad = turn(0, "sum", SUM), turn(1, "sum", "def total(xs): pass")
    edited = turn(2, "sum", "def total(ys):\n    return ys")
    lacking = turn(3, "sum", "def f(): pass", learn=False)
    dropped = without_words(turn(4, "sum", "def g(): pass"))
    silent = turn(5, "sum", "def h(): pass")
    other = turn(6, "count", "len(xs)", workload="chat", tags={"team": "web"})
    raw = turn(7, "", "x = 1", messages=({"role": "prompt", "content": "x ="},), prompt_token_ids=tokens_of("x ="))
    turns = (good, bad, edited, lacking, dropped, silent, other, raw)
    said = [
        said_of(good, "accepted"),
        said_of(bad, "rejected"),
        said_of(edited, "edited", 0.75, edits=(edit_of(edited, " ys", " sum(xs)"),), evidence=SUM),
        said_of(lacking, "accepted"),
        said_of(dropped, "accepted"),
        said_of(other, "accepted"),
        said_of(raw, "accepted"),
    ]
    return sorted((*turns, *said), key=lambda event: event.received_at)
