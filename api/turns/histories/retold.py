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
from collections.abc import Iterable, Mapping, Sequence
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


def marks_of_turn(turn: Completion, messages: Sequence[Message], *, is_named: bool) -> list[str]:
    """Return the marks that a turn leaves within its session and, unless the client gave its id, outside it.

    `messages` are those of its request as the model was shown them."""
    marks = _Marks(speaker_of(turn.user_id, turn.key_id))
    if turn.purpose == "summary":
        marks.add_summary(turn.text)
    else:
        for call in turn.tool_calls[:_MOST_CALLS]:
            marks.add_call(call.id, call.name, call.arguments)
        marks.add_answer(messages, turn.text)
    return marks.keys((turn.session_id,) if is_named else (turn.session_id, None))


def marks_in(speaker: str | None, sessions: Iterable[SessionId | None], messages: Sequence[Message]) -> list[str]:
    """Return the marks that a history shows within sessions, or of any, where one of them is None.

    Those of the first session come first, and in it those of the latest answer. They are a few hundred at most for
    each, however long the history is."""
    marks = _Marks(speaker)
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for place in answers[: -_MOST_ANSWERS - 1 : -1]:
        message = messages[place]
        for call in (message.get("tool_calls") or ())[:_MOST_CALLS]:
            marks.add_call(call["id"], call["function"]["name"], call["function"]["arguments"])
        text = message["content"] or ""
        marks.add_answer(messages[:place], text)
        marks.add_summary(text)
    users = [message for message in messages if message["role"] == "user"]
    for message in users[:_FIRST_USERS] + users[_FIRST_USERS:][-_LAST_USERS:]:
        marks.add_ends(message["content"] or "")
    return marks.keys(sessions)


class _Marks:
    """The marks of one speaker: digests of words that show a turn within its session, and those that do in any."""

    def __init__(self, speaker: str | None) -> None:
        self._speaker = speaker
        self._within: list[str] = []
        self._anywhere: list[str] = []

    def keys(self, sessions: Iterable[SessionId | None]) -> list[str]:
        """Return the keys of live state in each session, or in any, where one is None."""
        keys: list[str] = []
        for session_id in sessions:
            if session_id is None:
                keys += self._anywhere
            else:
                keys += [f"{session_id}\0{digest}" for digest in self._within]
        return keys

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        self._add(self._digest("call", call_id, name, normal_arguments(arguments)))

    def add_answer(self, before: Sequence[Message], text: str) -> None:
        """Add the marks of an answer: by itself within its session; else behind the answer before it, and by itself."""
        asked, said = _asked(before), text.strip()
        if not said or not asked:
            return
        if len(asked) + len(said) >= _LEAST_OF_BOTH:
            earlier = next((each["content"] for each in reversed(before) if each["role"] == "assistant"), None)
            self._anywhere.append(self._digest("after", earlier or "", asked, said))
        self._add(self._digest("answer", asked, said), is_anywhere=len(said) >= _LEAST_CHARACTERS)

    def add_summary(self, text: str) -> None:
        said = text.strip()
        if len(said) >= _LEAST_OF_A_SUMMARY:
            self._add(self._digest("summary", said))

    def add_ends(self, text: str) -> None:
        """Add the marks of what may be a summary at the end of a user's words, behind a line or some."""
        start = 0
        for _ in range(_MOST_LINES if len(text) <= _MOST_CHARACTERS else 0):
            self.add_summary(text[start:])
            start = text.find("\n", start) + 1
            if start == 0:
                return

    def _add(self, digest: str, *, is_anywhere: bool = True) -> None:
        self._within.append(digest)
        if is_anywhere:
            self._anywhere.append(digest)

    def _digest(self, *said: str) -> str:
        return hashlib.blake2b(_encode((self._speaker, *said)), digest_size=16).hexdigest()


def _asked(before: Sequence[Message]) -> str:
    """Return what a user or a tool said last, up to the first empty line; "" where nobody did."""
    last = before[-1] if before else None
    if last is None or last["role"] not in ("user", "tool"):
        return ""
    return str(last["content"] or "").strip().partition("\n\n")[0]
