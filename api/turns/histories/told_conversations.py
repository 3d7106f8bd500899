"""Conversations that a client quotes as text in a request of its own, with the speaker before each message.

opencode writes `[User]: ...`, aider `# USER` on a line of its own, or `USER: ...` and behind the last answer the diffs
that the commit message is for."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_SPEAKER = re.compile(r"^(?:\[(User|Assistant)\]: |# (USER|ASSISTANT)\n|(USER|ASSISTANT): )", re.MULTILINE)
_END = re.compile(r"\n(?:# Diffs:\n|</conversation>)")
_MOST_CHARACTERS = 256 << 10


def conversation_in(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of the conversation that the last message tells, if it is a user's and tells one."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "user":
        return []
    text = _END.split(str(last["content"] or "")[:_MOST_CHARACTERS], maxsplit=1)[0]
    marks = list(_SPEAKER.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)][: len(marks)]
    return [
        {"role": (mark[1] or mark[2] or mark[3]).lower(), "content": text[mark.end() : end].strip()}
        for mark, end in zip(marks, ends, strict=True)
    ]
