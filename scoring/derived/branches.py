"""Rules about branches of a session's tree: what a branch says of the answer that it leaves."""

from collections.abc import Iterator

from core.operations.ledger import LedgerEntry
from core.reward_spec import DerivedSpec
from scoring.derived.conclusion import Conclusion
from scoring.derived.conversation import LoggedConversation


def regenerated(conversation: LoggedConversation, spec: DerivedSpec) -> Iterator[Conclusion]:
    """Conclude that the user wants another answer from the same request at the same place."""
    left = _left(conversation)
    if left is not None and left.facts.asked == conversation.facts.asked:
        yield Conclusion("regenerated", left.inference_id, True, "asked for another answer")


def abandoned(conversation: LoggedConversation, spec: DerivedSpec) -> Iterator[Conclusion]:
    """Conclude from another request at the same place that the user went back to before the answer.

    The root does not count, where a client that shortens its history begins anew."""
    left = _left(conversation)
    if left is not None and conversation.parent is not None and left.facts.asked != conversation.facts.asked:
        yield Conclusion("abandoned", left.inference_id, True, "went on from before it")


def _left(conversation: LoggedConversation) -> LedgerEntry | None:
    """Return the last whole answer at the same place. Other choices of the same request are not second thoughts."""
    turn, mine = conversation.turn, conversation.facts
    siblings = (
        other
        for other in reversed(conversation.session.answers_to(turn.parent_id))
        if other.inference_id != turn.inference_id
        and other.turn_index == turn.turn_index  # the model may have spoken in between, and nobody kept it
        and other.facts.group_id != mine.group_id
        and other.opened_at <= turn.received_at
    )
    return next(siblings, None)
