"""The output tokens that belong to tool calls, by the renderer's own parser."""

from collections.abc import Sequence

from core.events import Segment, SegmentKind
from core.ports import Renderer


def segments_of(renderer: Renderer, token_ids: Sequence[int], *, has_calls: bool) -> tuple[Segment, ...]:
    """Replay the answer token by token and return its segments.

    Tokens up to one that yields a whole call are that call's, back to the last that yielded text; tokens that yield
    nothing to the end (a stop token) belong to what came before them."""
    if not token_ids:
        return ()
    if not has_calls:
        return (Segment(start=0, end=len(token_ids), kind="answer"),)
    ends: list[tuple[int, SegmentKind]] = []
    parser = renderer.parser(tools=True)
    for place, token_id in enumerate(token_ids, 1):
        parsed = parser.feed((token_id,))
        if parsed.tool_calls:
            ends.append((place, "tool"))
        elif parsed.content:
            ends.append((place, "answer"))
    return _joined(ends, len(token_ids))


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
