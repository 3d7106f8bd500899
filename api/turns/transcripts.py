"""The hash chain over a conversation's messages, by which a turn finds the one it continues.

digest(i) covers messages 0..i. An edit, an undo or a regenerated answer gives other digests from there on, so the
longest known prefix is where the session branched. The seed holds what else a prompt's tokens depend on (the tools),
and the speaker, so that two users, or two keys that name none, who say the same never share a session."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.requests.messages import tool_call
from api.turns.histories.arguments import normal_arguments
from core.events import ToolCall

MAX_CANDIDATES = 256  # prefixes tried, the longest first
_DIGEST_BYTES = 16
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Transcript:
    """The digests of a conversation; `digest` is of all of it.

    `answers` are (number of messages, digest) of each prefix that ends in an assistant's message."""

    def __init__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], speaker: str | None
    ) -> None:
        self.messages = messages
        self._hash = hashlib.blake2b(_encode((speaker, tools)), digest_size=_DIGEST_BYTES)
        self.answers: list[tuple[int, str]] = []
        for count, message in enumerate(messages, 1):
            self._hash.update(_digestible(message))
            if message["role"] == "assistant":
                self.answers.append((count, self._hash.hexdigest()))
        self.num_messages = len(messages)
        self.digest = self._hash.hexdigest()

    def candidates(self) -> list[str]:
        return [digest for _, digest in reversed(self.answers[-MAX_CANDIDATES:])]

    def with_answer(self, text: str, calls: Sequence[ToolCall]) -> str:
        """Return the digest after this answer of the assistant, a prefix of the client's next request."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [tool_call(call.id, call.name, call.arguments) for call in calls]
        answered = self._hash.copy()
        answered.update(_digestible(message))
        return answered.hexdigest()


def _digestible(message: Mapping[str, Any]) -> bytes:
    """Return the bytes to hash.

    Clients parse a call's arguments and write them anew in their own way, so they count as the JSON that they mean.
    Thinking does not count: many clients do not send it back."""
    message = {name: value for name, value in message.items() if name != "reasoning_content"}
    calls = message.get("tool_calls")
    if not calls:
        return _encode(message)
    meant = [(call["id"], call["function"]["name"], normal_arguments(call["function"]["arguments"])) for call in calls]
    return _encode({**message, "tool_calls": meant})
