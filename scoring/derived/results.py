"""Rules about what tools answered: tests, builds and linters that ran after an edit, and calls that failed."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from core.ids import InferenceId
from core.reward_spec import DerivedSpec
from core.text.patterns import pattern
from scoring.derived.conclusion import Conclusion
from scoring.derived.conversation import AnsweredCall, LoggedConversation
from scoring.rewards.runs import is_failure, run_of, verdict_of

_WORDS: Final = 2000  # characters of a failed run, from its end, where tools sum up


class _Edited(NamedTuple):
    """The last edit before a run; `alone`: its turn made no other since the run before."""

    call: AnsweredCall
    alone: bool = True

    def and_then(self, call: AnsweredCall) -> "_Edited":
        return _Edited(call, alone=call.turn is not self.call.turn)


def passed(conversation: LoggedConversation, spec: DerivedSpec) -> Iterator[Conclusion]:
    """Conclude about the turn with the last edit before a run; a run without an edit before it is about no turn.

    Where that turn edited once since the run before, it is about this call alone."""
    calls = conversation.calls
    start = next((place for place, call in enumerate(calls) if conversation.answers_newly(call)), len(calls))
    edited = _last_edited(calls[:start], spec) if start < len(calls) else None
    has_run = False
    for place, call in enumerate(calls[start:], start):
        name = run_of(call.line, spec)
        if name is None:
            if pattern(spec.edits).is_in(call.line):
                edited, has_run = _Edited(call) if has_run or edited is None else edited.and_then(call), False
            continue
        has_run = True
        if edited is not None and edited.call.turn is not None and conversation.answers_newly(call):
            verdict = verdict_of(call.result or "")
            if verdict is not None:
                yield _about(name, edited, edited.call.turn.inference_id, verdict, call, place)


def _about(name: str, edited: _Edited, about: InferenceId, verdict: bool, run: AnsweredCall, place: int) -> Conclusion:
    return Conclusion(
        name,
        about,
        verdict,
        f"{run.name} after the edit",
        place,
        call=edited.call.id if edited.alone else None,
        words=None if verdict else (run.result or "")[-_WORDS:],
    )


def _last_edited(calls: Sequence[AnsweredCall], spec: DerivedSpec) -> _Edited | None:
    """Return the last edit; an answer's edits that no run stands between are not alone."""
    last: AnsweredCall | None = None
    for call in reversed(calls):
        if last is not None and call.said_at != last.said_at:
            break
        if run_of(call.line, spec) is not None:
            if last is not None:
                break
        elif pattern(spec.edits).is_in(call.line):
            if last is not None:
                return _Edited(last, alone=False)
            last = call
    return None if last is None else _Edited(last)


def failed_calls(conversation: LoggedConversation, spec: DerivedSpec) -> Iterator[Conclusion]:
    """Conclude about each call whose new result says that it failed; runs have an outcome of their own."""
    for place, call in enumerate(conversation.calls):
        if call.turn is not None and conversation.answers_newly(call) and run_of(call.line, spec) is None:
            result = call.result or ""
            if is_failure(result):
                why = f"{call.name} failed"
                yield Conclusion("call_failed", call.turn.inference_id, True, why, place, call.id, result[-_WORDS:])
