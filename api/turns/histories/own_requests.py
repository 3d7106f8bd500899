"""Requests that clients make for themselves: for a title, a commit message, a summary of what was said.

They stand beside the conversation: what the model answers is no step of the user's work, and the user may never see it.
A client that says so (`x-turn-type`) is believed. Others are known by the words with which their prompts open, each of
which was seen in the client's traffic or stands in its source. A prompt that opens otherwise is a turn like any."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from core.events import Purpose


class OwnRequest(msgspec.Struct, frozen=True, gc=False):
    """A kind of request. `place`: which message opens with `opening`, the first (a system's) or the last (a user's)."""

    name: str
    purpose: Purpose
    place: Literal["first", "last"]
    opening: str


KNOWN = (
    OwnRequest("opencode_title", "side", "first", "You are a title generator."),
    OwnRequest("opencode_summary", "side", "first", "Summarize what was done in this conversation."),
    OwnRequest("opencode_compaction", "summary", "first", "You are a context summarization agent."),
    OwnRequest("aider_commit", "side", "first", "You are an expert software engineer that generates concise, one-line"),
    OwnRequest("aider_compaction", "summary", "first", "*Briefly* summarize this partial conversation about"),
    OwnRequest("codex_compaction", "summary", "last", "You are performing a CONTEXT CHECKPOINT COMPACTION."),
    OwnRequest("continue_compaction", "summary", "last", "Please provide a concise summary of our conversation so far"),
)
_FIRST = {kind.opening: kind for kind in KNOWN if kind.place == "first"}
_LAST = {kind.opening: kind for kind in KNOWN if kind.place == "last"}
_FIRST_OPENINGS, _LAST_OPENINGS = tuple(_FIRST), tuple(_LAST)


def own_request(messages: Sequence[Mapping[str, Any]]) -> OwnRequest | None:
    """Return the kind of a client's own request, or None for a turn of the conversation."""
    if not messages:
        return None
    first, last = messages[0], messages[-1]
    if first["role"] == "system" and _text(first).startswith(_FIRST_OPENINGS):
        return next(kind for opening, kind in _FIRST.items() if _text(first).startswith(opening))
    if last["role"] == "user" and _text(last).startswith(_LAST_OPENINGS):
        return next(kind for opening, kind in _LAST.items() if _text(last).startswith(opening))
    return None


def _text(message: Mapping[str, Any]) -> str:
    return message["content"] or ""
