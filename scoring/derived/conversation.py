"""A turn's conversation: its messages joined with the turns that said them."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from core.events import Completion
from core.ids import InferenceId
from core.operations.ledger import Facts, LedgerEntry
from core.reward_spec import call_line
from scoring.rewards.facts import content_of, new_messages
from scoring.rewards.state import Session

Message = Mapping[str, Any]


class AnsweredCall(msgspec.Struct, frozen=True):
    """A tool call of the conversation with its answer, if any yet.

    `turn`: the turn that made it, if known; `said_at`, `answered_at`: places among the messages."""

    id: str | None
    name: str
    arguments: str
    turn: LedgerEntry | None
    said_at: int
    result: str | None
    answered_at: int

    @property
    def line(self) -> str:
        """The call as patterns match it."""
        return call_line(self.name, self.arguments)


class LoggedConversation:
    def __init__(self, turn: Completion, session: Session) -> None:
        self.turn = turn
        self.session = session
        self.messages: Sequence[Message] = turn.messages

    @cached_property
    def new(self) -> Sequence[Message]:
        """Return the messages since the last answer."""
        return new_messages(self.messages)

    @cached_property
    def new_request(self) -> str:
        """Return the user's words since the last answer; "" when only tools spoke."""
        return "\n".join(content_of(message) for message in self.new if message["role"] == "user").strip()

    @cached_property
    def earlier_request(self) -> str:
        """Return the user's words before the last answer."""
        before = self.messages[: len(self.messages) - len(self.new)]
        said = (content_of(message) for message in reversed(before) if message["role"] == "user")
        return next(said, "").strip()

    @cached_property
    def ancestors(self) -> list[LedgerEntry]:
        """Return the turn's ancestors, the parent first; no more than the conversation has answers to join with."""
        found: dict[InferenceId, LedgerEntry] = {}
        place = self.turn.parent_id
        while len(found) < len(self._answers) and place is not None and place not in found:
            turn = self.session.turns.get(place)
            if turn is None:
                break
            found[place] = turn
            place = turn.facts.parent_id
        return list(found.values())

    @cached_property
    def _answers(self) -> list[int]:
        """Return the places of the answers."""
        return [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]

    @property
    def facts(self) -> Facts:
        return self.session.turns[self.turn.inference_id].facts

    @property
    def parent(self) -> LedgerEntry | None:
        """The turn that gave the last answer, if known: the model may have answered since the last stored turn."""
        found = None if self.turn.parent_id is None else self.session.turns.get(self.turn.parent_id)
        return None if found is None or found.turn_index != self.turn.turn_index - 1 else found

    @cached_property
    def calls(self) -> list[AnsweredCall]:
        """Return the tool calls in order, each joined with its turn.

        Answers and ancestors are joined from the end, by their place: what was said before the first known turn has
        none, nor has what was not stored."""
        by_index = {turn.turn_index: turn for turn in reversed(self.ancestors)}
        last = self.turn.turn_index - 1
        speakers = {place: by_index.get(last - back) for back, place in enumerate(reversed(self._answers))}
        results = {
            message.get("tool_call_id"): (content_of(message), place)
            for place, message in enumerate(self.messages)
            if message["role"] == "tool"
        }
        return [
            AnsweredCall(
                id=call.get("id"),
                name=call["function"]["name"],
                arguments=call["function"]["arguments"],
                turn=speakers.get(place),
                said_at=place,
                result=results[call["id"]][0] if call.get("id") in results else None,
                answered_at=results[call["id"]][1] if call.get("id") in results else place,
            )
            for place in self._answers
            for call in self.messages[place].get("tool_calls") or ()
        ]

    def answers_newly(self, call: AnsweredCall) -> bool:
        """Return whether the call's result came since the last answer."""
        return call.result is not None and call.answered_at >= len(self.messages) - len(self.new)

    def user_spoke_between(self, start: int, end: int) -> bool:
        return any(message["role"] == "user" for message in self.messages[start + 1 : end])
