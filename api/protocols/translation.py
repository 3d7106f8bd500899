"""The part that the translations of other protocols' requests to a chat's share: messages, and tools."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from api.requests.ignored import take_ignored
from api.requests.messages import ChatMessage, Part, TextPart, ToolMessage
from api.requests.tools import check_count
from core.errors import InvalidRequest

B = TypeVar("B", bound=msgspec.Struct)
D = TypeVar("D", bound=msgspec.Struct)


class Conversation(ABC, Generic[B]):
    """A chat's messages, the places in the request that they came from, and the names of what was ignored.

    `B` is what the protocol's contents are made of: its blocks, or parts."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.places: dict[str, str] = {}
        self.ignored: list[str] = []

    def add(self, message: ChatMessage, place: str) -> None:
        self.places[f"messages[{len(self.messages)}]"] = place
        self.messages.append(message)

    def add_result(self, content: str | list[Part], call_id: str, place: str, id_field: str) -> None:
        """Add what a tool said; `id_field` is the client's name for the id of its call."""
        self.places[f"messages[{len(self.messages)}].tool_call_id"] = f"{place}.{id_field}"
        self.add(ToolMessage(content, call_id), place)

    def content(self, content: str | Sequence[B], place: str) -> str | list[Part]:
        """Return a content in a chat's words. Raises InvalidRequest naming what is no text."""
        if isinstance(content, str):
            return content
        return [TextPart(self.text(part, f"{place}[{index}]")) for index, part in enumerate(content)]

    @abstractmethod
    def text(self, part: B, place: str) -> str:
        """Return the text of a part, and take what is ignored. Raises InvalidRequest naming what is no text."""


def unsupported(place: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{place}: {why}", param=place, code="unsupported")


@dataclass(frozen=True)
class ToolKinds(Generic[D]):
    """The types of tools that a protocol has.

    `shown` has the form of those that the model is shown, `of_servers` how the types begin that the protocol's own
    servers run: the model is not shown these, and so never calls them. Who sends another is told `instead`."""

    shown: Mapping[str | None, type[D]]
    of_servers: Sequence[str]
    instead: str

    def read(self, tools: Sequence[dict[str, Any]], ignored: list[str]) -> Iterator[tuple[str, D]]:
        """Yield the place and the definition of each tool that the model is shown; add to `ignored` what is not.

        Raises InvalidRequest naming the tool."""
        check_count(tools)
        for index, given in enumerate(tools):
            place, kind = f"tools[{index}]", given.get("type")
            form = self.shown.get(kind) if kind is None or isinstance(kind, str) else None
            if form is None:
                ignored.append(f"tools[].{self._left_out(kind, f'{place}.type')}")
                continue
            try:
                tool = msgspec.convert(given, form)
            except msgspec.ValidationError as error:
                raise InvalidRequest(f"{place}: {error}", param=place, code="invalid_tool") from None
            ignored += take_ignored(tool, "tools[].")
            yield place, tool

    def _left_out(self, kind: object, place: str) -> str:
        """Return the name of a tool of the servers, never in the client's own spelling."""
        for name in self.of_servers:
            if isinstance(kind, str) and kind.startswith(name):
                return name
        raise unsupported(place, f"the model knows no such tool; {self.instead}")
