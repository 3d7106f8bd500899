"""Harmony, the form of gpt-oss: an answer is messages, each with a channel, and with whom it is for.

    <|channel|>analysis<|message|>I should look.<|end|><|start|>assistant<|channel|>commentary
    to=functions.read_file <|constrain|>json<|message|>{"path": "a.py"}<|call|>

What is said in the channel `analysis` is thinking; a message to a function is a call; all else is content. An answer
that is none of this is content too."""

from collections.abc import Sequence

from serving.rendering.formats.calls import NoCall, ParsedCall, Schemas, checked_call, parsed_json
from serving.rendering.formats.parser import Words, overlap

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
_SPEAKER = "assistant"
_HEADS = (_START, _SPEAKER, _CHANNEL, " to=")
_FUNCTIONS = "functions."


class HarmonyParser:
    def __init__(self, tools: Schemas) -> None:
        self._has_tools = bool(tools)
        self._held = ""
        self._head: str | None = None  # of the message that is read; None: between messages
        self._head_at = 0
        self._has_begun = False  # of the message that is read, some has been told
        self._characters = 0  # of the answer so far; those that are held are the last of them

    def read(self, text: str, *, last: bool) -> Words:
        self._held += text
        self._characters += len(text)
        words = Words()
        while self._read_head(last) if self._head is None else self._read_body(words, last):
            pass
        return words

    def _read_head(self, last: bool) -> bool:
        """Read a message's head; text that is no head is a body without one."""
        if not self._held:
            return False
        self._has_begun = False
        end = self._held.find(_MESSAGE)
        if any(self._held.startswith(mark) for mark in _HEADS):
            if end >= 0:
                self._head_at = self._characters - len(self._held)
                self._head, self._held = self._held[:end], self._held[end + len(_MESSAGE) :]
                return True
            if not last:
                return False
        elif not last and any(mark.startswith(self._held) for mark in _HEADS):
            return False
        self._head = ""
        return True

    def _read_body(self, words: Words, last: bool) -> bool:
        head = self._head or ""
        marks = (*ENDS, _START)
        end, mark = self._next(marks, 0 if head or self._has_begun else 1)
        recipient = _recipient(head)
        if end < 0:
            if recipient and not last:
                return False
            kept = 0 if last else max(overlap(self._held, mark) for mark in marks)
            body, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        else:
            body, self._held = self._held[:end], self._held[end + len(mark) * (mark != _START) :]
        self._has_begun = self._has_begun or bool(body)
        is_whole = end >= 0 and mark == ENDS[-1]
        self._add(words, head, recipient, body, is_whole=is_whole)
        if end >= 0:
            words.thinking_ended = words.thinking_ended or _is_thinking(head)
            self._head = None
        elif last:
            self._head = None
        return end >= 0

    def _next(self, marks: Sequence[str], begin: int) -> tuple[int, str]:
        """Return the place of the next mark, and the mark. A body without a head may begin with what begins a head."""
        places = ((self._held.find(mark, begin if mark == _START else 0), mark) for mark in marks)
        return min((found for found in places if found[0] >= 0), default=(-1, ""))

    def _add(self, words: Words, head: str, recipient: str | None, body: str, *, is_whole: bool) -> None:
        if recipient is None:
            if _is_thinking(head):
                words.reasoning += body
            else:
                words.content += body
            return
        try:
            words.calls.append(_call(recipient, body, is_whole=is_whole and self._has_tools))
            words.call_ranges.append((self._head_at, self._characters - len(self._held)))
        except NoCall:
            words.broken_calls += self._has_tools
            words.content += f"{head}{_MESSAGE}{body}"


def _is_thinking(head: str) -> bool:
    return f"{_CHANNEL}analysis" in head and _recipient(head) is None


def _recipient(head: str) -> str | None:
    """Return whom a message is for, where it is a function's."""
    name = head.partition(f"to={_FUNCTIONS}")[2].partition("<")[0].split()
    return name[0] if name else None


def _call(name: str, body: str, *, is_whole: bool) -> ParsedCall:
    if not is_whole:
        raise NoCall("it was cut off, or there are no tools")
    return checked_call(name, parsed_json(body))
