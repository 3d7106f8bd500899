"""A conversation, as an OpenAI client sends it."""

import json
from types import ModuleType
from typing import Any

from core.events import Completion, ToolCall


class Chat:
    """A conversation as an OpenAI client sends it: every request holds everything said before."""

    def __init__(self, lab: ModuleType, session: str = "s") -> None:
        self._events = lab.Events()
        self._session = session
        self.messages: list[dict[str, Any]] = []
        self.turns: list[Completion] = []
        self._parent: Completion | None = None

    def ask(self, text: str, seconds: float = 0, answer: str = "ok", **fields: Any) -> Completion:
        self.messages.append({"role": "user", "content": text})
        return self.answered(seconds, answer, **fields)

    def answered(self, seconds: float, answer: str = "ok", *calls: ToolCall, **fields: Any) -> Completion:
        """Add an answer of the model to the conversation so far."""
        parent = None if self._parent is None else self._parent.inference_id
        given = {"parent_id": parent, "messages": tuple(self.messages), "text": answer, "tool_calls": calls}
        given["group_id"] = f"group-{len(self.turns)}"
        given["turn_index"] = sum(message["role"] == "assistant" for message in self.messages)
        turn = self._events.turn(self._session, seconds, **(given | fields))
        made = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
        self.messages.append({"role": "assistant", "content": answer} | ({"tool_calls": made} if made else {}))
        self.turns.append(turn)
        self._parent = turn
        return turn

    def use(self, seconds: float, name: str, result: str, **arguments: Any) -> Completion:
        """Add a turn that calls a tool, and the tool's result."""
        call = ToolCall(id=f"call-{len(self.turns)}", name=name, arguments=json.dumps(arguments), index=0)
        turn = self.answered(seconds, "", call)
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return turn

    def back(self, turns: int) -> None:
        """Go back to before the last `turns` requests of the user."""
        by_id = {turn.inference_id: turn for turn in self.turns}
        while turns:
            role = self.messages.pop()["role"]
            if role == "assistant" and self._parent is not None and self._parent.parent_id is not None:
                self._parent = by_id[self._parent.parent_id]
            elif role == "assistant":
                self._parent = None
            turns -= role == "user"
