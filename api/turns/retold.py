"""Marks by which a history that a client has rewritten still shows which turn it continues.

The transcript's digest fails where anything before an answer was changed: the system prompt, the tools, reminders that
a client sends once and then leaves out, or a whole history that was replaced by a summary. What is left of the model's
own words may show it all the same:

- a call with the id that this service has drawn for it;
- an answer behind the words that asked for it, up to their first empty line, behind which clients put reminders;
- a summary, wherever it stands: as an answer, or in the words of a user from the beginning of a paragraph to the end.

Marks hold only for the same user. Short answers are none, since very many conversations have them. They are kept in
live state alone: where it has lost them, the history counts as rewritten by nobody knows whom, and begins a session."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from api.turns.transcripts import normal_arguments
from core.events import Purpose, ToolCall
from core.ids import UserHash

_LEAST_CHARACTERS: Final = 20
_LEAST_OF_A_SUMMARY: Final = 40
_MOST_ANSWERS: Final = 16  # looked at, from the last one back
_MOST_USERS: Final = 2  # messages of users in which a summary is sought: it stands at the beginning
_MOST_PARAGRAPHS: Final = 16  # of each
_encode = msgspec.msgpack.Encoder().encode

Message = Mapping[str, Any]


def marks_of_turn(
    user_id: UserHash | None, messages: Sequence[Message], purpose: Purpose, text: str, calls: Sequence[ToolCall]
) -> tuple[str, ...]:
    """Return the marks that an answer to `messages` leaves."""
    if purpose == "summary":
        return tuple(_of_summary(user_id, text))
    return (
        *(_of_call(user_id, call.id, call.name, call.arguments) for call in calls),
        *_of_answer(user_id, _asked(messages, len(messages)), text),
    )


def marks_in(user_id: UserHash | None, messages: Sequence[Message]) -> list[str]:
    """Return the marks that a history shows, those of the latest answer first."""
    found: list[str] = []
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for place in answers[: -_MOST_ANSWERS - 1 : -1]:
        message = messages[place]
        for call in message.get("tool_calls") or ():
            found.append(_of_call(user_id, call["id"], call["function"]["name"], call["function"]["arguments"]))
        text = message["content"] or ""
        found += [*_of_answer(user_id, _asked(messages, place), text), *_of_summary(user_id, text)]
    users = [message for message in messages if message["role"] == "user"]
    for message in users[:_MOST_USERS]:
        found += _of_paragraphs(user_id, message["content"] or "")
    return found


def _of_paragraphs(user_id: UserHash | None, text: str) -> Iterator[str]:
    """Yield the marks of what may be a summary at the end of a user's words."""
    start = 0
    for _ in range(_MOST_PARAGRAPHS):
        yield from _of_summary(user_id, text[start:])
        start = text.find("\n", start) + 1
        if start == 0:
            return


def _of_call(user_id: UserHash | None, call_id: str, name: str, arguments: str) -> str:
    return _digest(user_id, "call", call_id, name, normal_arguments(arguments))


def _of_answer(user_id: UserHash | None, asked: str, text: str) -> Iterator[str]:
    said = text.strip()
    if asked and len(said) >= _LEAST_CHARACTERS:
        yield _digest(user_id, "answer", asked, said)


def _of_summary(user_id: UserHash | None, text: str) -> Iterator[str]:
    said = text.strip()
    if len(said) >= _LEAST_OF_A_SUMMARY:
        yield _digest(user_id, "summary", said)


def _asked(messages: Sequence[Message], end: int) -> str:
    """Return what the user said last before a message, up to the first empty line; "" where a tool spoke since."""
    before = messages[end - 1] if end else None
    if before is None or before["role"] != "user":
        return ""
    return str(before["content"] or "").strip().partition("\n\n")[0]


def _digest(user_id: UserHash | None, *said: str) -> str:
    return hashlib.blake2b(_encode((user_id, *said)), digest_size=16).hexdigest()
