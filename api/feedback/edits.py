"""Edits in tokens: which of an answer's tokens somebody kept, and the tokens of what they wrote instead.

They are exact or none: the tokens that were kept, with the new ones in their places, are read as the final text, by the
parser that read the answer. The new ones are the tokenizer's own pieces of the final text."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from core.errors import InvalidRequest
from core.events import Completion, TextEdit, TokenRange, ToolCall
from core.ports import Renderer
from core.records.text_edits import applied
from core.text.alignment import aligned
from core.text.edits import LONGEST, lines_left, text_of_call
from core.text.json_objects import object_of

MOST_EDITS: Final = 64
"""Edits of one text; of more, those that are closest to each other count as one."""
_MOST_LOST: Final = 128
"""Runs of lost lines in one text."""


def edits_to(renderer: Renderer, turn: Completion, call_id: str | None, final: str) -> tuple[TextEdit, ...]:
    """Return the edits that make `final` of the answer's text, or of what one of its calls writes; () without any.

    () also where nothing that is exact can be said: a text that stands among the tokens twice, that a stop string cut
    within a token, or that its call writes in another way than its final form."""
    if max(len(turn.text), len(final)) > LONGEST:
        return ()
    part = _part_of(renderer, turn, call_id)
    if part is None:
        return ()
    written = _as_written(part, turn, call_id, final)
    try:
        new = renderer.answer_tokens(written, is_first=part.is_first)
    except InvalidRequest:
        return ()
    if max(len(part.pieces), len(new)) > LONGEST:
        return ()
    pieces = [renderer.token_bytes(token) for token in new]
    if part.is_first and b"".join(pieces) == b" " + written.encode():  # a tokenizer's, and not the text's
        pieces[0] = pieces[0].removeprefix(b" ")
    found: list[TextEdit] = []
    for each in aligned(part.pieces, pieces, MOST_EDITS):
        if not (part.is_whole(each.start) and part.is_whole(each.end - 1)) and each.start < each.end:
            return ()
        start, end = part.token(each.start), part.token(each.start) + each.end - each.start
        found.append(TextEdit(start=start, end=end, token_ids=new[each.new_start : each.new_end]))
    return tuple(found) if _is_exact(renderer, turn, call_id, found, final) else ()


def lost_lines(
    renderer: Renderer, turn: Completion, call_id: str | None, lines: Sequence[str], file: str
) -> tuple[TextEdit, ...]:
    """Return as edits the tokens of those of a text's lines that are not left in the file, whatever took their place.

    () of more runs of lines than a turn is credited in parts (`scoring.rewards.spans`). `lines`: the text's, whole. A
    token is of the line that it begins in."""
    part = _part_of(renderer, turn, call_id)
    if part is None:
        return ()
    left, ends = lines_left(lines, file), _line_ends(part)
    if len(ends) != len(left) - 1:
        return ()
    begins = accumulate(map(len, part.pieces), initial=0)
    lost = [
        part.token(place)
        for place, begin in zip(range(len(part.pieces)), begins, strict=False)
        if left[bisect_right(ends, begin)] is False and part.is_whole(place)
    ]
    runs = _runs(lost)
    return tuple(TextEdit(start=start, end=end, token_ids=()) for start, end in runs) if len(runs) <= _MOST_LOST else ()


# ------------------------------------------------------------------------------------------ the text among the tokens


class _Part(msgspec.Struct, frozen=True):
    """A text where it stands in an answer: what of it each token from `start` on says."""

    text: str
    start: int
    pieces: list[bytes]
    whole_first: bool
    whole_last: bool
    is_first: bool

    def token(self, place: int) -> int:
        return self.start + place

    def is_whole(self, place: int) -> bool:
        """Return whether all that a token says is of the text."""
        return (place > 0 or self.whole_first) and (place < len(self.pieces) - 1 or self.whole_last)


def _part_of(renderer: Renderer, turn: Completion, call_id: str | None) -> _Part | None:
    if call_id is None:
        ranges = [TokenRange(start=each.start, end=each.end) for each in turn.segments if each.kind == "answer"]
        found = [part for each in ranges if (part := _found(renderer, turn, each, turn.text)) is not None]
        return found[0] if len(found) == 1 else None
    call = _call(turn.tool_calls, call_id)
    text = None if call is None else text_of_call(call.arguments)
    if call is None or call.token_range is None or not text:
        return None
    forms = dict.fromkeys((text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]))
    found = [part for form in forms if (part := _found(renderer, turn, call.token_range, form)) is not None]
    return found[0] if found else None


def _found(renderer: Renderer, turn: Completion, within: TokenRange, text: str) -> _Part | None:
    """Return where the text stands in a range of tokens; None unless it does so once."""
    said = [renderer.token_bytes(token) for token in turn.token_ids[within.start : within.end]]
    whole, sought = b"".join(said), text.encode()
    begin = whole.find(sought)
    if not sought or begin < 0 or whole.find(sought, begin + 1) >= 0:
        return None
    end, place = begin + len(sought), 0
    pieces: list[bytes] = []
    first, edges = 0, [True, True]
    for number, piece in enumerate(said):
        after = place + len(piece)
        if after > begin and place < end:
            if not pieces:
                first, edges[0] = number, place >= begin
            edges[1] = after <= end
            pieces.append(piece[max(begin - place, 0) : end - place])
        elif pieces and place >= end:
            break
        elif pieces:
            pieces.append(piece)  # it says nothing
        place = after
    start = within.start + first
    is_first = not any(renderer.token_bytes(token) for token in turn.token_ids[:start])
    if is_first and begin and whole[:begin] == b" ":
        edges[0] = True  # a tokenizer's space, which goes with the first token
    return _Part(text, start, pieces, edges[0], edges[1], is_first)


def _line_ends(part: _Part) -> list[int]:
    """Return where each line of a text ends, in bytes, also where JSON writes them as one line."""
    written = part.text.encode()
    ends = [place + 1 for place, byte in enumerate(written) if byte == ord("\n")]
    if ends:
        return ends
    place = written.find(b"\\")
    while place >= 0:
        if written[place + 1 : place + 2] == b"n":
            ends.append(place + 2)
        place = written.find(b"\\", place + 2)
    return ends


def _as_written(part: _Part, turn: Completion, call_id: str | None, final: str) -> str:
    """Return the final text in the form in which the answer has the text."""
    call = None if call_id is None else _call(turn.tool_calls, call_id)
    text = turn.text if call is None else text_of_call(call.arguments)
    if part.text == text:
        return final
    return json.dumps(final, ensure_ascii=part.text.isascii() and not str(text).isascii())[1:-1]


def _call(calls: Sequence[ToolCall], call_id: str | None) -> ToolCall | None:
    return next((call for call in calls if call.id == call_id), None)


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


# ------------------------------------------------------------------------------------------ the proof


def _is_exact(renderer: Renderer, turn: Completion, call_id: str | None, edits: Sequence[TextEdit], final: str) -> bool:
    """Return whether the tokens after the edits are read as the final text, and all else as before."""
    before, after = (_read(renderer, turn, ids) for ids in (turn.token_ids, applied(turn.token_ids, edits)))
    (text, thought, calls), (new_text, new_thought, new_calls) = before, after
    if thought != new_thought or len(calls) != len(new_calls):
        return False
    if call_id is None:
        return text.startswith(turn.text) and new_text == final + text[len(turn.text) :] and calls == new_calls
    place = next(place for place, call in enumerate(turn.tool_calls) if call.id == call_id)
    if text != new_text or calls[:place] + calls[place + 1 :] != new_calls[:place] + new_calls[place + 1 :]:
        return False
    (name, arguments), (new_name, new_arguments) = calls[place], new_calls[place]
    said, new_said = object_of(arguments) or {}, object_of(new_arguments) or {}
    changed = [key for key in said.keys() | new_said.keys() if said.get(key) != new_said.get(key)]
    is_alone = name == new_name and said.keys() == new_said.keys() and len(changed) <= 1
    return is_alone and text_of_call(new_arguments) == final


_Words = tuple[str, str, list[tuple[str, str]]]


def _read(renderer: Renderer, turn: Completion, token_ids: Sequence[int]) -> _Words:
    """Read tokens as the turn's own were read: thinking, text and calls."""
    is_chat = not (turn.messages and turn.messages[0]["role"] == "prompt")
    parser = renderer.parser(tools=turn.tools if is_chat else None, after=turn.prompt_token_ids)
    deltas = (parser.feed(token_ids), parser.finish())
    calls = [(call.name, call.arguments) for delta in deltas for call in delta.tool_calls]
    return "".join(delta.content for delta in deltas), "".join(delta.reasoning for delta in deltas), calls
