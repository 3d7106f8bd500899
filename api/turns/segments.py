"""The output tokens that belong to thinking and to tool calls, by the renderer's own parser; and to the text."""

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from core.events import Segment, SegmentKind
from core.ports import OutputDelta, Renderer


def answer_alone(token_ids: Sequence[int]) -> tuple[Segment, ...]:
    """Return the segments of an answer that neither thinks nor calls."""
    return (Segment(start=0, end=len(token_ids), kind="answer"),) if token_ids else ()


def segments_of(
    renderer: Renderer, prompt_token_ids: Sequence[int], token_ids: Sequence[int], tools: Sequence[Mapping[str, Any]]
) -> tuple[Segment, ...]:
    """Replay the answer token by token and return its segments.

    Tokens up to one that yields a whole call are that call's, back to the last that yielded text; those of thinking go
    up to the mark that ends it; tokens that yield nothing to the end (a stop token) belong to what came before them."""
    parser = renderer.parser(tools=tools, after=prompt_token_ids)
    ends: list[tuple[int, SegmentKind]] = []
    for place, token_id in enumerate(token_ids, 1):
        kind = _kind(parser.feed((token_id,)))
        if kind is not None:
            ends.append((place, kind))
    kind = _kind(parser.finish())
    if kind is not None:
        ends.append((len(token_ids), kind))
    return _joined(ends, len(token_ids))


def _kind(parsed: OutputDelta) -> SegmentKind | None:
    if parsed.tool_calls:
        return "tool"
    if parsed.content:
        return "answer"
    return "thinking" if parsed.reasoning or parsed.thinking_ended else None


def _joined(ends: Sequence[tuple[int, SegmentKind]], length: int) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    start = 0
    for end, kind in ends:
        if segments and segments[-1].kind == kind:
            segments[-1] = Segment(start=segments[-1].start, end=end, kind=kind)
        else:
            segments.append(Segment(start=start, end=end, kind=kind))
        start = end
    if start < length:
        last = segments.pop() if segments else Segment(start=0, end=0, kind="answer")
        segments.append(Segment(start=last.start, end=length, kind=last.kind))
    return tuple(segments)


def text_ends(renderer: Renderer, token_ids: Sequence[int], segments: Sequence[Segment], text: str) -> tuple[int, ...]:
    """Return how many characters of the text are said up to the end of each token; () where that is not certain.

    The text is sought in the segments of the answer, and must stand in one of them, once."""
    sought = text.encode()
    found: list[tuple[int, int]] = []  # the segment's first token, and the text's first byte, counted from there
    for segment in segments:
        if segment.kind == "answer" and sought:
            said = b"".join(map(renderer.token_bytes, token_ids[segment.start : segment.end]))
            place = said.find(sought)
            while place >= 0:
                found.append((segment.start, place))
                place = said.find(sought, place + 1)
    if len(found) != 1:
        return ()
    first, begin = found[0]
    ends, place, read, characters = [0] * first, -begin, 0, 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    for token in token_ids[first:]:
        place += len(renderer.token_bytes(token))
        until = min(max(place, 0), len(sought))
        characters += len(decoder.decode(sought[read:until]))
        read = until
        ends.append(characters)
    return tuple(ends)
