"""When tool calls were executed, as the program that executed them told with their results.

A turn is logged before its calls are executed, so that their times stand in a later turn of the session: with the
results that its request brought."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from core.events import Completion


class ToldCallTimes(msgspec.Struct, frozen=True):
    started_at: datetime
    ended_at: datetime


def call_times(messages: Sequence[Mapping[str, Any]]) -> dict[str, ToldCallTimes]:
    """Return the times that the results among the messages tell, by the calls' ids; of each call the first."""
    found: dict[str, ToldCallTimes] = {}
    for call_id, told in _told(messages):
        found.setdefault(call_id, msgspec.convert(told, ToldCallTimes))
    return found


def critical_path_seconds(times: Mapping[str, ToldCallTimes]) -> float:
    """Return for how long at least one of the calls ran: of calls that ran together the longest counts alone."""
    seconds, reached = 0.0, datetime.min.replace(tzinfo=UTC)
    for each in sorted(times.values(), key=lambda each: each.started_at):
        seconds += max((each.ended_at - max(each.started_at, reached)).total_seconds(), 0.0)
        reached = max(reached, each.ended_at)
    return seconds


def with_call_times(turns: Sequence[Completion]) -> list[Completion]:
    """Return the turns of one session, each call with its times where any of the turns tells them."""
    known: dict[str, ToldCallTimes] = {}
    for turn in turns:
        known = call_times(turn.messages) | known
    return [_timed(turn, known) for turn in turns]


def _timed(turn: Completion, known: Mapping[str, ToldCallTimes]) -> Completion:
    if not any(call.id in known for call in turn.tool_calls):
        return turn
    calls = [
        msgspec.structs.replace(call, **msgspec.structs.asdict(known[call.id])) if call.id in known else call
        for call in turn.tool_calls
    ]
    return msgspec.structs.replace(turn, tool_calls=tuple(calls))


def _told(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for message in messages:
        if message["role"] == "tool" and message.get("onward"):
            yield message["tool_call_id"], message["onward"]
