"""Marks by which a history that a client has rewritten still shows which turn it continues.

The transcript's digest fails where anything before an answer was changed: the system prompt, the tools, reminders that
a client sends once and then leaves out, or a whole history that was replaced by a summary. What is left of the model's
own words may show it all the same:

- a call with the id that this service has drawn for it;
- an answer behind the words that it answers, up to their first empty line, behind which clients put reminders;
- a summary, wherever it stands: as an answer, or at the end of what a user says, from the beginning of a line.

Marks hold only for the same user. Short answers are marks only within a session that is named, since very many
conversations have them. Marks are kept in live state alone: where it has lost them, the history counts as rewritten by
nobody knows whom, and begins a session."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from api.turns.histories.arguments import normal_arguments
from core.events import Completion
from core.ids import SessionId, UserHash

_LEAST_CHARACTERS: Final = 20  # of an answer
_LEAST_OF_BOTH: Final = 40  # of an answer and what it answers, behind the same answer
_LEAST_OF_A_SUMMARY: Final = 40
_MOST_ANSWERS: Final = 16  # looked at, from the last one back
_FIRST_USERS, _LAST_USERS = 2, 4  # messages of users in which a summary is sought: instead of the history, or behind it
_MOST_LINES: Final = 4  # of each, at which a summary may begin: known clients write one before it
_MOST_CHARACTERS: Final = 64 << 10
_encode = msgspec.msgpack.Encoder().encode

Message = Mapping[str, Any]


def marks_of_turn(turn: Completion, messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the marks that a turn leaves; `messages` are those of its request as the model was shown them."""
    user_id, text = turn.user_id, turn.text
    if turn.purpose == "summary":
        return tuple(_of_summary(user_id, text))
    return (
        *(_of_call(user_id, call.id, call.name, call.arguments) for call in turn.tool_calls),
        *_of_answer(user_id, turn.session_id, messages, text),
    )


def marks_in(user_id: UserHash | None, session_id: SessionId | None, messages: Sequence[Message]) -> list[str]:
    """Return the marks that a history shows, those of the latest answer first; `session_id`: where that is known."""
    found: list[str] = []
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for place in answers[: -_MOST_ANSWERS - 1 : -1]:
        message = messages[place]
        for call in message.get("tool_calls") or ():
            found.append(_of_call(user_id, call["id"], call["function"]["name"], call["function"]["arguments"]))
        text = message["content"] or ""
        found += [*_of_answer(user_id, session_id, messages[:place], text), *_of_summary(user_id, text)]
    users = [message for message in messages if message["role"] == "user"]
    for message in users[:_FIRST_USERS] + users[_FIRST_USERS:][-_LAST_USERS:]:
        found += _of_ends(user_id, message["content"] or "")
    return found


def _of_ends(user_id: UserHash | None, text: str) -> Iterator[str]:
    """Yield the marks of what may be a summary at the end of a user's words, behind a line or some."""
    start = 0
    for _ in range(_MOST_LINES if len(text) <= _MOST_CHARACTERS else 0):
        yield from _of_summary(user_id, text[start:])
        start = text.find("\n", start) + 1
        if start == 0:
            return


def _of_call(user_id: UserHash | None, call_id: str, name: str, arguments: str) -> str:
    return _digest(user_id, "call", call_id, name, normal_arguments(arguments))


def _of_answer(
    user_id: UserHash | None, session_id: SessionId | None, before: Sequence[Message], text: str
) -> Iterator[str]:
    """Yield the marks of an answer: within its session, behind the answer before it, by itself."""
    asked, said = _asked(before), text.strip()
    if not said or not asked:
        return
    if session_id is not None:
        yield _digest(user_id, "in_session", session_id, asked, said)
    if len(asked) + len(said) >= _LEAST_OF_BOTH:
        earlier = next((each["content"] for each in reversed(before) if each["role"] == "assistant"), None)
        yield _digest(user_id, "after", earlier or "", asked, said)
    if len(said) >= _LEAST_CHARACTERS:
        yield _digest(user_id, "answer", asked, said)


def _of_summary(user_id: UserHash | None, text: str) -> Iterator[str]:
    said = text.strip()
    if len(said) >= _LEAST_OF_A_SUMMARY:
        yield _digest(user_id, "summary", said)


def _asked(before: Sequence[Message]) -> str:
    """Return what a user or a tool said last, up to the first empty line; "" where nobody did."""
    last = before[-1] if before else None
    if last is None or last["role"] not in ("user", "tool"):
        return ""
    return str(last["content"] or "").strip().partition("\n\n")[0]


def _digest(user_id: UserHash | None, *said: str) -> str:
    return hashlib.blake2b(_encode((user_id, *said)), digest_size=16).hexdigest()
