"""The messages that the model is shown next, and whether they fit into its context.

What the model has been shown and has said is known in tokens, from its answers; what is new since is estimated from
its characters, at the rate of the tokens known, and a little more."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from environments.harness.execution import Executed
from environments.harness.model import Answer, Message

_CAUTION: Final = 1.15
_OF_A_MESSAGE: Final = 8  # tokens around each, by most templates
_LEAST_CHARACTERS: Final = 80  # that are left of a result, whatever is cut


class Context:
    """The present context of a session: its opening, and what has followed."""

    def __init__(self, opening: Sequence[Message], tools: Sequence[dict[str, Any]]) -> None:
        self._opening = list(opening)
        self._tools_characters = len(json.dumps(tools)) if tools else 0
        self._rest: list[Message] = []
        self._known_tokens = 0
        self._known = 0  # messages, from the first, that are in the known tokens
        self._first: tuple[list[Message], int] = ([], 0)  # asked, and its tokens with tools
        self._tokens_a_character = 0.0
        self._results: dict[str, _Ends] = {}  # of calls whose results are in it

    @property
    def messages(self) -> list[Message]:
        return [*self._opening, *self._rest]

    def answered(self, answer: Answer) -> None:
        """Add an answer, whose usage says how many tokens all of it is."""
        characters = sum(map(_characters, self.messages)) + self._tools_characters
        self._tokens_a_character = answer.prompt_tokens / max(characters, 1)
        if not self._first[0]:
            self._first = self.messages, answer.prompt_tokens
        self._rest.append(answer.message)
        self._known_tokens, self._known = answer.prompt_tokens + answer.output_tokens, len(self.messages)

    def add(self, message: Message) -> None:
        self._rest.append(message)

    def add_result(self, executed: Executed, most_characters: int) -> None:
        """Add the message that tells a call's result, and when it ran."""
        ends = self._results[executed.call.id] = _Ends.of(executed.text, most_characters)
        times = {"started_at": _moment(executed.started_at), "ended_at": _moment(executed.ended_at)}
        content = ends.cut(most_characters)
        self.add({"role": "tool", "tool_call_id": executed.call.id, "content": content, "onward": times})

    @property
    def tokens(self) -> int:
        """How many tokens the next prompt has, by the estimate; 0 where nothing has been asked yet."""
        if not self._tokens_a_character:
            return 0
        new = self.messages[self._known :]
        return self._known_tokens + sum(map(self.estimate, map(_characters, new))) + _OF_A_MESSAGE

    def estimate(self, characters: int) -> int:
        return int(characters * self._tokens_a_character * _CAUTION) + _OF_A_MESSAGE

    def begin_again(self, opening: Sequence[Message]) -> None:
        """Forget all but a new opening."""
        self._opening, self._rest = list(opening), []
        self._results.clear()
        self._know_first()

    def forget_oldest(self) -> bool:
        """Forget the oldest answer with its results; False where none but the last is left."""
        starts = [place for place, message in enumerate(self._rest) if message["role"] == "assistant"]
        if len(starts) < 2:
            return False
        for message in self._rest[: starts[1]]:
            self._results.pop(message.get("tool_call_id", ""), None)
        self._rest = self._rest[starts[1] :]
        self._know_first()
        return True

    def _know_first(self) -> None:
        """Know of the present messages only those that were asked first, and the tools.

        What tools are in tokens depends on the template: some show their names alone."""
        first, tokens = self._first
        if self.messages[: len(first)] == first:
            self._known, self._known_tokens = len(first), tokens
        else:
            self._known, self._known_tokens = 0, self.estimate(self._tools_characters)

    def shorten_new(self, room_tokens: int) -> None:
        """Cut the results that nobody has been shown yet until all of it has at most so many tokens."""
        new = [message for message in self.messages[self._known :] if message["role"] == "tool"]
        while self.tokens > room_tokens:
            longest = max(new, key=_characters, default=None)
            if longest is None or _characters(longest) <= _LEAST_CHARACTERS:
                return
            most = max(_LEAST_CHARACTERS // 2, _characters(longest) // 2)
            longest["content"] = self._results[longest["tool_call_id"]].cut(most)


def cut(text: str, most: int) -> str:
    """Return the beginning and the end of a text, and say how much of it was left out between them."""
    return _Ends.of(text, most).cut(most)


@dataclass(frozen=True)
class _Ends:
    """The beginning and the end of a text that may be shown shorter than it was, and again shorter."""

    head: str
    tail: str
    length: int  # of all of it

    @classmethod
    def of(cls, text: str, most: int) -> Self:
        return cls(text[:most], text[-most:], len(text))

    def cut(self, most: int) -> str:
        """Return it with at most so many characters of its own, which are no more than were kept."""
        if self.length <= most:
            return self.head
        head = self.head[: most * 2 // 3]
        tail = self.tail[-(most - len(head)) :]
        return f"{head}\n[... {self.length - most} characters left out ...]\n{tail}"


def _characters(message: Message) -> int:
    calls = message.get("tool_calls")
    return len(message.get("content") or "") + (len(json.dumps(calls)) if calls else 0)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
