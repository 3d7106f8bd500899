"""Spans that are kept in memory, for tests that ask what was recorded."""

from collections.abc import Iterator
from contextlib import contextmanager

from core import tracing
from core.ids import InferenceId
from core.tracing import TraceSpan


class KeptSpans:
    def __init__(self) -> None:
        self.spans: list[TraceSpan] = []

    def record(self, span: TraceSpan) -> None:
        self.spans.append(span)

    def of_turn(self, inference_id: InferenceId) -> dict[str, TraceSpan]:
        """Return the spans of a turn's trace, the last of each name."""
        root = tracing.root_of(inference_id)
        assert root is not None
        return {span.name: span for span in list(self.spans) if span.place.trace_id == root.trace_id}


@contextmanager
def kept_spans() -> Iterator[KeptSpans]:
    """Record all spans of this process for as long as this lasts."""
    kept = KeptSpans()
    tracing.install(kept)
    try:
        yield kept
    finally:
        tracing.install(None)
