"""Marks by which a history that a client has rewritten still shows which turn it continues.

The transcript's digest fails where anything before an answer was changed: the system prompt, the tools, reminders that
a client sends once and then leaves out, or a whole history that was replaced by a summary. What is left of the model's
own words may show it all the same:

- a call with the id that this service has drawn for it;
- an answer behind the words that it answers, up to their first empty line, behind which clients put reminders;
- a summary, wherever it stands: as an answer, or at the end of what a user says, from the beginning of a line.

Marks hold only for the same speaker, and those of a session whose id is given only within it. Where there are no keys
and no user is named nobody is known to speak, but such a service listens to its own machine alone. Short answers are
marks only within a session that is named, since very many conversations have them. Marks are kept in live state alone:
where it has lost them, the history counts as rewritten by nobody knows whom, and begins a session."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from api.turns.histories.arguments import normal_arguments
from api.turns.speakers import speaker_of
from core.events import Completion
from core.ids import SessionId

_LEAST_CHARACTERS: Final = 20  # of an answer
_LEAST_OF_BOTH: Final = 40  # of an answer and what it answers, behind the same answer
_LEAST_OF_A_SUMMARY: Final = 40
_MOST_ANSWERS: Final = 16  # looked at, from the last one back
_MOST_CALLS: Final = 16  # of each answer: any of them shows the turn
_FIRST_USERS, _LAST_USERS = 2, 4  # messages of users in which a summary is sought: instead of the history, or behind it
_MOST_LINES: Final = 4  # of each, at which a summary may begin: known clients write one before it
_MOST_CHARACTERS: Final = 64 << 10
_encode = msgspec.msgpack.Encoder().encode

Message = Mapping[str, Any]


class Seed(msgspec.Struct, frozen=True, gc=False):
    """What marks hold for: who speaks, None where nobody is known, and the session, None for marks of any."""

    speaker: str | None
    session_id: SessionId | None


def marks_of_turn(turn: Completion, messages: Sequence[Message], *, is_named: bool) -> tuple[str, ...]:
    """Return the marks that a turn leaves within its session and, unless the client gave its id, outside it.

    `messages` are those of its request as the model was shown them."""
    speaker = speaker_of(turn.user_id, turn.key_id)
    places = (turn.session_id,) if is_named else (turn.session_id, None)
    asked, said = _asked(messages), turn.text.strip()
    found: list[str] = []
    for place in places:
        seed = Seed(speaker, place)
        if turn.purpose == "summary":
            found += _of_summary(seed, said)
            continue
        found += [_of_call(seed, call.id, call.name, call.arguments) for call in turn.tool_calls[:_MOST_CALLS]]
        found += _of_answer(seed, messages, asked, said)
    return tuple(found)


def marks_in(speaker: str | None, session_id: SessionId | None, messages: Sequence[Message]) -> list[str]:
    """Return the marks that a history shows within a session, or of any; those of the latest answer come first.

    They are a few hundred at most, however long it is."""
    seed, found = Seed(speaker, session_id), list[str]()
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for place in answers[: -_MOST_ANSWERS - 1 : -1]:
        message = messages[place]
        for call in (message.get("tool_calls") or ())[:_MOST_CALLS]:
            found.append(_of_call(seed, call["id"], call["function"]["name"], call["function"]["arguments"]))
        before, said = messages[:place], (message["content"] or "").strip()
        found += [*_of_answer(seed, before, _asked(before), said), *_of_summary(seed, said)]
    users = [message for message in messages if message["role"] == "user"]
    for message in users[:_FIRST_USERS] + users[_FIRST_USERS:][-_LAST_USERS:]:
        found += _of_ends(seed, message["content"] or "")
    return found


def _of_ends(seed: Seed, text: str) -> Iterator[str]:
    """Yield the marks of what may be a summary at the end of a user's words, behind a line or some."""
    start = 0
    for _ in range(_MOST_LINES if len(text) <= _MOST_CHARACTERS else 0):
        yield from _of_summary(seed, text[start:].strip())
        start = text.find("\n", start) + 1
        if start == 0:
            return


def _of_call(seed: Seed, call_id: str, name: str, arguments: str) -> str:
    return _digest(seed, "call", call_id, name, normal_arguments(arguments))


def _of_answer(seed: Seed, before: Sequence[Message], asked: str, said: str) -> Iterator[str]:
    """Yield the marks of an answer: by itself within its session; else behind the answer before it, and by itself."""
    if not said or not asked:
        return
    if seed.session_id is None and len(asked) + len(said) >= _LEAST_OF_BOTH:
        earlier = next((each["content"] for each in reversed(before) if each["role"] == "assistant"), None)
        yield _digest(seed, "after", earlier or "", asked, said)
    if seed.session_id is not None or len(said) >= _LEAST_CHARACTERS:
        yield _digest(seed, "answer", asked, said)


def _of_summary(seed: Seed, said: str) -> Iterator[str]:
    if len(said) >= _LEAST_OF_A_SUMMARY:
        yield _digest(seed, "summary", said)


def _asked(before: Sequence[Message]) -> str:
    """Return what a user or a tool said last, up to the first empty line; "" where nobody did."""
    last = before[-1] if before else None
    if last is None or last["role"] not in ("user", "tool"):
        return ""
    return str(last["content"] or "").strip().partition("\n\n")[0]


def _digest(seed: Seed, *said: str) -> str:
    return hashlib.blake2b(_encode((seed.speaker, seed.session_id, *said)), digest_size=16).hexdigest()
