"""Translation of an engine's labels to our versions. The engine's host sets the labels, as text."""

from collections.abc import Callable, Iterable, Sequence

from core.events import VersionSpan
from core.ids import ANCHOR, UNKNOWN, PolicyRef
from serving.engines.sglang.generation.wire import Span


def version_of(label: str | None) -> PolicyRef:
    """UNKNOWN for a label that is no version of ours, such as the `default` of a server that nobody labelled."""
    try:
        version = PolicyRef.parse(label or "")
    except ValueError:
        return UNKNOWN
    return version if version.version else UNKNOWN


Speaker = Callable[[str | None], PolicyRef]
"""Returns the version that generates tokens under a label."""


def upon_the_anchor(version: PolicyRef) -> Speaker:
    """Return the speaker of a request that names an adapter: `version`, while the server's weights are the anchor's."""
    return lambda label: version if version_of(label) == ANCHOR else UNKNOWN


def version_spans(spans: Iterable[Span], length: int, speaker: Speaker = version_of) -> tuple[VersionSpan, ...]:
    """Return the spans of the first `length` tokens; neighbours of one version are merged."""
    found: list[VersionSpan] = []
    for span in spans:
        version, start, end = speaker(span.version), span.start, min(span.end, length)
        if start >= end:
            continue
        if found and found[-1].version == version and found[-1].end == start:
            start = found.pop().start
        found.append(VersionSpan(start=start, end=end, version=version))
    return tuple(found)


def within(spans: Sequence[VersionSpan], start: int, end: int) -> list[VersionSpan]:
    """Return the part of the spans in [start, end), without gaps: uncovered tokens are UNKNOWN."""
    parts: list[VersionSpan] = []
    for span in spans:
        low, high = max(span.start, start), min(span.end, end)
        if low < high:
            parts += _gap(start, low)
            parts.append(VersionSpan(start=low, end=high, version=span.version))
            start = high
    return parts + _gap(start, end)


def _gap(start: int, end: int) -> list[VersionSpan]:
    return [VersionSpan(start=start, end=end, version=UNKNOWN)] if start < end else []
