"""Traces: one of each turn, from the request to the weights that learned from it, and one of each version.

Their ids are derived, and nothing carries them: a turn's trace has the 128 bits of its inference id for its own, a
version's those of a digest of its name, and a span's id is a digest of what it says was done. So any process can add a
span, however late; no record has a field for it; and a stage that does its work again after a crash sends the same
spans again. Until somebody installs a recorder nothing is recorded, and nothing is imported for it."""

import hashlib
import uuid
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from core.ids import InferenceId, PolicyRef

_TURN: Final = "turn"
_SPAN_IDS: Final = 1 << 64
Value = str | int | float | bool


class SpanContext(NamedTuple):
    """A span, as others name it."""

    trace_id: int
    span_id: int


class TraceSpan(NamedTuple):
    """What was done, from when until when. `links` are spans of other traces; `events` are moments within it."""

    place: SpanContext
    parent: SpanContext | None
    name: str
    began_at: datetime
    ended_at: datetime
    attributes: Mapping[str, Value]
    links: tuple[SpanContext, ...] = ()
    events: tuple[tuple[str, datetime], ...] = ()
    has_failed: bool = False
    is_request: bool = False


class Recorder(Protocol):
    """Takes spans, from any thread, and never waits."""

    def record(self, span: TraceSpan) -> None: ...


class _Installed(NamedTuple):
    recorder: Recorder
    share: float


_installed: _Installed | None = None


def install(recorder: Recorder | None, share: float = 1.0) -> None:
    """Record this share of turns from now on, the same ones in all processes; with None nothing."""
    global _installed
    _installed = None if recorder is None else _Installed(recorder, share)


def is_on() -> bool:
    return _installed is not None


def record(span: TraceSpan) -> None:
    if _installed is not None:
        _installed.recorder.record(span)


# ------------------------------------------------------------------------------------------ turns


def root_of(inference_id: InferenceId) -> SpanContext | None:
    """Return the first span of a turn's trace; None where this turn is not traced, or its id is no UUID."""
    if _installed is None:
        return None
    try:
        trace_id = uuid.UUID(inference_id).int
    except ValueError:
        return None
    span_id = _span_id(_TURN, inference_id)  # bits of the id itself count, and would choose whole milliseconds
    return SpanContext(trace_id, span_id) if span_id < _installed.share * _SPAN_IDS else None


def trace(
    inference_id: InferenceId,
    name: str,
    began_at: datetime,
    ended_at: datetime,
    which: str = "",
    links: tuple[SpanContext, ...] = (),
    about: Mapping[str, Value] = MappingProxyType({}),
) -> None:
    """Record what was done about a turn; `which` tells apart what is done several times."""
    root = root_of(inference_id)
    if root is not None:
        place = SpanContext(root.trace_id, _span_id(name, inference_id, which))
        record(TraceSpan(place, root, name, began_at, max(began_at, ended_at), about, links))


# ------------------------------------------------------------------------------------------ versions


@lru_cache(1024)
def root_of_version(version: PolicyRef) -> SpanContext:
    """Return the first span of a version's trace."""
    digest = hashlib.sha256(f"onward version {version}".encode()).digest()
    return SpanContext(int.from_bytes(digest[:16]) | 1, int.from_bytes(digest[16:24]) | 1)


def trace_version(version: PolicyRef, name: str, began_at: datetime, ended_at: datetime, which: str = "") -> None:
    """Record what was done with a version."""
    if is_on():
        root = root_of_version(version)
        place = SpanContext(root.trace_id, _span_id(name, str(version), which))
        about = {"onward.version": str(version)}
        record(TraceSpan(place, root, name, began_at, max(began_at, ended_at), about))


def _span_id(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8]) | 1  # never 0, which is none


# ------------------------------------------------------------------------------------------ callers


class Caller(NamedTuple):
    """The span of whoever asked; `is_sampled`: whether he records his trace."""

    place: SpanContext
    is_sampled: bool


def caller_of(traceparent: str | None) -> Caller | None:
    """Read W3C's `traceparent`; a malformed one is ignored, as its specification says."""
    parts = (traceparent or "").split("-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2] or (parts[0] == "00" and len(parts) > 4):
        return None
    if parts[0] == "ff" or not set("".join(parts[:4])) <= set("0123456789abcdef"):
        return None
    place = SpanContext(int(parts[1], 16), int(parts[2], 16))
    return Caller(place, bool(int(parts[3], 16) & 1)) if all(place) else None


def root_for(caller: Caller, inference_id: InferenceId) -> SpanContext:
    """Return the span of an answer within its caller's trace."""
    return SpanContext(caller.place.trace_id, _span_id("answer", inference_id))
