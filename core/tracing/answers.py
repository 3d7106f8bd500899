"""The spans of an answer: the request, what became of it in the engine, and the log."""

from datetime import datetime, timedelta
from typing import Final

from core.events import Completion
from core.tracing import Caller, TraceSpan, Value, record, root_for, root_of, trace

_COMPLETE: Final = frozenset(("stop", "length", "tool_calls"))


def trace_answer(
    turn: Completion, asked_after_s: float, log_began_at: datetime, ended_at: datetime, caller: Caller | None
) -> None:
    """Record the spans of a turn that was answered and logged.

    `asked_after_s`: from its arrival to its request to the engine. A caller who records gets a span of it in a trace of
    his own, and each of the two traces links to the other."""
    root = root_of(turn.inference_id)
    if root is None:
        return
    began_at = turn.received_at
    asked_at = began_at + timedelta(seconds=asked_after_s)
    events = () if turn.ttft_ms is None else (("first token", began_at + timedelta(milliseconds=turn.ttft_ms)),)
    ended_at = max(ended_at, began_at)
    links = () if caller is None else (caller.place,)
    has_failed = turn.finish_reason not in _COMPLETE
    about = attributes_of(turn)
    record(TraceSpan(root, None, "turn", began_at, ended_at, about, links, events, has_failed, is_request=True))
    if caller is not None and caller.is_sampled:
        place = root_for(caller, turn.inference_id)
        record(TraceSpan(place, caller.place, "answer", began_at, ended_at, about, (root,), events, has_failed, True))
    trace(turn.inference_id, "prepare", began_at, asked_at)
    trace(turn.inference_id, "engine", asked_at, log_began_at)
    trace(turn.inference_id, "log", log_began_at, ended_at)


def attributes_of(turn: Completion) -> dict[str, Value]:
    """Return what a span says of a turn: ids and counts, nobody's words, and no user."""
    found: dict[str, Value] = {
        "onward.inference_id": turn.inference_id,
        "onward.namespace": turn.namespace,
        "onward.workload": turn.workload,
        "onward.purpose": turn.purpose,
        "onward.versions": ",".join(dict.fromkeys(str(span.version) for span in turn.policy_versions)),
        "onward.trainable": turn.trainable,
        "gen_ai.response.finish_reasons": turn.finish_reason,
        "gen_ai.usage.input_tokens": turn.num_prompt_tokens,
        "gen_ai.usage.output_tokens": turn.num_output_tokens,
    }
    return found if turn.replica is None else {**found, "onward.replica": turn.replica}
