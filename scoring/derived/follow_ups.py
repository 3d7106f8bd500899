"""Rules about the user's next words: what they say of the answer before them."""

from collections.abc import Iterator

from core.reward_spec import DerivedSpec
from core.text.edits import likeness
from core.text.patterns import pattern
from scoring.derived.conclusion import Conclusion
from scoring.derived.conversation import LoggedConversation
from scoring.rewards.facts import normal

_LONGEST = 2000  # characters of a request that are looked at
_SHORTEST = 12  # below it requests are alike by chance ("go on", "yes")


def displeased(conversation: LoggedConversation, spec: DerivedSpec) -> Iterator[Conclusion]:
    """Conclude from complaints, and from the same request once more, that the answer was not good."""
    parent, request = conversation.parent, conversation.new_request[:_LONGEST]
    if parent is None or not request:
        return
    if found := pattern(spec.displeased).search(request):
        yield Conclusion("follow_up", parent.inference_id, True, f"says: {found.strip()}", words=request)
    elif len(request) >= _SHORTEST:
        alike = likeness(normal(request), normal(conversation.earlier_request[:_LONGEST]), spec.repeats)
        if alike:
            yield Conclusion("follow_up", parent.inference_id, True, f"asks again ({alike:.0%} the same)")


def taken_back(conversation: LoggedConversation, spec: DerivedSpec) -> Iterator[Conclusion]:
    """Conclude about the last turn that edited that the user asks for the edit to be undone."""
    found = pattern(spec.takes_back).search(conversation.new_request[:_LONGEST])
    if found is None:
        return
    edit = next((call for call in reversed(conversation.calls) if pattern(spec.edits).is_in(call.line)), None)
    if edit is not None and edit.turn is not None:
        yield Conclusion("reverted", edit.turn.inference_id, True, f"says: {found.strip()}", call=edit.id)
