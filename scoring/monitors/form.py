"""The form of a turn: what a model can see of its surroundings whatever the task is about.

It is a set of short texts that people can read, such as `result of read_file: lines begin '9: '`. They tell tools and
their arguments by name, but of what tools returned and people wrote only the form: in a frame, letters are `w` and
digits `9`. A turn has the form of what is new in it, so that the turns of a session tell each thing once."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from core.events import Completion
from core.text.json_objects import object_of

_MOST = 64  # of a turn
_LONGEST = 200  # characters of one: names of tools and of their arguments are the clients' to choose
_LINES = 12  # of a result, that are looked at
_FRAME_CHARACTERS = 24
_BEGIN_CHARACTERS = 6
_JSON_CHARACTERS = 20_000
_MOST_KEYS = 8
_WITHIN_PATHS: Final = frozenset("/.-\\")
_LONG: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")


def form_of(turn: Completion) -> tuple[str, ...]:
    """Return the form of what is new in the turn, in a fixed order."""
    found = {each[:_LONGEST] for each in _found(turn)}
    return tuple(sorted(found)[:_MOST])


def _found(turn: Completion) -> Iterator[str]:
    messages, begin = turn.messages, _new_from(turn.messages)
    if begin == 0:
        yield from _beginning(turn)
    names = _called(messages[begin - 1] if begin else {})
    new = messages[begin:]
    yield f"roles: {' '.join(_role(message) for message in new)[:60]}"
    for message in new:
        if message.get("role") == "tool":
            name = names.get(message.get("tool_call_id", ""), "a tool")
            yield from (f"result of {name}: {said}" for said in _form_of_text(_content(message)))
    declared = dict(map(_declared, turn.tools))
    for call in turn.tool_calls:
        given = object_of(call.arguments)
        keys = "no object" if given is None else _shape(given, declared.get(call.name, frozenset()))
        yield f"call of {call.name}: {keys}"
    yield f"answer: {_several(len(turn.tool_calls))} calls{' and text' if turn.text.strip() else ''}"


def _beginning(turn: Completion) -> Iterator[str]:
    first = turn.messages[0] if turn.messages else {}
    yield f"first message: {_role(first)} of {_size(len(_content(first)))} characters"
    for name, keys in map(_declared, turn.tools):
        yield f"tool {name}: takes {', '.join(sorted(keys)[:_MOST_KEYS]) or 'nothing'}"


def _new_from(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the place behind the last message of the assistant."""
    said = (place for place in reversed(range(len(messages))) if messages[place].get("role") == "assistant")
    return next(said, -1) + 1


def _role(message: Mapping[str, Any]) -> str:
    return str(message.get("role", "none"))


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _called(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a message's calls by their ids."""
    return {
        call.get("id", ""): (call.get("function") or {}).get("name", "a tool")
        for call in message.get("tool_calls") or ()
    }


def _declared(tool: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    function = tool.get("function") or tool
    parameters = function.get("parameters") or function.get("input_schema") or {}
    return str(function.get("name", "")), frozenset((parameters.get("properties") or {}).keys())


def _shape(given: Mapping[str, Any], declared: frozenset[str]) -> str:
    """Return the arguments' names and types; names that the tool does not declare are the model's words."""
    said = [f"{name if name in declared else 'other'} {type(value).__name__}" for name, value in given.items()]
    return ", ".join(sorted(said)[:_MOST_KEYS]) or "nothing"


def _form_of_text(text: str) -> Iterator[str]:
    yield f"{_size(len(text))} characters"
    if not text.strip():
        return
    if text[0] in "{[" and len(text) <= _JSON_CHARACTERS and (given := object_of(text)) is not None:
        types = Counter(type(value).__name__ for value in given.values())
        said = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
        yield f"JSON of {said or 'nothing'} (keys {crc32(' '.join(sorted(given)).encode(errors='replace')):08x})"
        return
    lines = text[: 200 * _LINES].split("\n")
    yield f"first line {outline(lines[0])!r}"
    last = text.rstrip("\n").rpartition("\n")[2]
    yield f"last line {outline(last)!r}"
    yield f"ends {'with' if text.endswith(chr(10)) else 'without'} a line's end"
    begins = Counter(begin(line) for line in lines[1:_LINES] if line.strip())
    if begins and 2 * begins.most_common(1)[0][1] > begins.total():
        yield f"lines begin {begins.most_common(1)[0][0]!r}"
    if "\x1b[" in text:
        yield "colours of a terminal"
    if "\r\n" in text:
        yield "lines that end with a carriage return"


def outline(line: str) -> str:
    """Return the frame of a line that begins with its text; of any other what stands before the text.

    A tool's own first and last lines, as `exit code 1`, begin with text; what it shows of a file mostly does not."""
    before = begin(line)
    return frame(line) if before == "w" else before


def frame(line: str) -> str:
    """Return a line's beginning with its letters as `w` and its digits as `9`, runs of one kind once.

    A path is one word, however deep it is."""
    made: list[str] = []
    for character in line[: 8 * _FRAME_CHARACTERS]:
        kind = _kind(character)
        if made and made[-1] == "w" and character in _WITHIN_PATHS:
            continue
        if not (made and made[-1] == kind and kind in "w9 "):
            made.append(kind)
        if len(made) == _FRAME_CHARACTERS:
            break
    return "".join(made)


def begin(line: str) -> str:
    """Return what stands before a line's text: its number, say, or the path and the number where it was found.

    A line that begins with its text has none, whatever the text is."""
    made = ""
    for place, character in enumerate(line[:200]):
        kind = _kind(character)
        if kind == "w":
            path = _place_in_file(line[place:]) if not made.strip() else ""
            return path or made or "w"
        if made.strip() and made[-1].isspace() and not character.isspace():
            break
        if not (made and made[-1] == kind and kind in "9 "):
            made += kind
        if len(made) == _BEGIN_CHARACTERS:
            break
    return made


def _place_in_file(text: str) -> str:
    """Return the form of `path:12:`, with which tools that search begin their lines; "" for other text."""
    path, colon, rest = text.partition(":")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    if not colon or not digits or " " in path or not ("." in path or "/" in path):
        return ""
    return f"path:9{rest[digits : digits + 1]}"


def _kind(character: str) -> str:
    if character in _LONG or (character > "\x7f" and character.isalpha()):
        return "w"
    return "9" if character.isdigit() else character


def _size(count: int) -> str:
    """Return a size as a power of 16: lengths differ with the task, and only their order tells the surroundings."""
    return "no" if not count else f"up to {16 ** (((count - 1).bit_length() + 3) // 4)}"


def _several(count: int) -> str:
    return str(count) if count < 3 else "several"
