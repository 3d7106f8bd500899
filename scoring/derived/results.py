"""Rules about tests, builds and linters that ran after an edit."""

from collections.abc import Iterator, Sequence

from core.operations.ledger import Turn
from core.reward_spec import DerivedSpec
from core.text.patterns import pattern
from scoring.derived.conclusion import Conclusion
from scoring.derived.conversation import Call, Conversation
from scoring.rewards.runs import run_of, verdict_of


def passed(conversation: Conversation, spec: DerivedSpec) -> Iterator[Conclusion]:
    """Conclude about the turn with the last edit before a run; a run without an edit before it is about no turn."""
    calls = conversation.calls
    start = next((place for place, call in enumerate(calls) if conversation.answers_newly(call)), len(calls))
    edited = _last_edit(calls[:start], spec) if start < len(calls) else None
    for place, call in enumerate(calls[start:], start):
        name = run_of(call.line, spec)
        if name is None:
            if pattern(spec.edits).is_in(call.line):
                edited = call.turn
        elif edited is not None and conversation.answers_newly(call):
            verdict = verdict_of(call.result or "")
            if verdict is not None:
                yield Conclusion(name, edited.inference_id, verdict, f"{call.name} after the edit", place)


def _last_edit(calls: Sequence[Call], spec: DerivedSpec) -> Turn | None:
    edits = (
        call for call in reversed(calls) if pattern(spec.edits).is_in(call.line) and run_of(call.line, spec) is None
    )
    return next((call.turn for call in edits), None)
