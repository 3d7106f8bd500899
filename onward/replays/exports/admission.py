"""The turns that may leave in an export, and how many may not, by reason."""

from collections import Counter
from collections.abc import Sequence

from core.ids import Namespace, SessionId
from core.operations.exclusions import Exclusion, is_excluded
from core.unstored import NOT_STORED
from learner.sequences.kept_out import KeptOut
from onward.replays.selection.known import KnownTurn
from onward.replays.selection.language import Selection


class Admission:
    """Admits turns. `counts`: `turns`, and of these the refused ones, by the first reason that holds.

    What a user did not consent to, a client did not want stored, or an order excludes, is refused before anything else
    is asked."""

    def __init__(
        self, selection: Selection, orders: Sequence[Exclusion], kept_out: KeptOut, tokenizer_digest: str
    ) -> None:
        self._selection, self._orders, self._kept_out = selection, orders, kept_out
        self._tokenizer = tokenizer_digest
        self.turns = self.compared = 0
        self.left_out = Counter[str]()
        self.sessions: set[tuple[Namespace, SessionId]] = set()
        """Those of admitted turns."""

    def admits(self, known: KnownTurn) -> bool:
        self.turns += 1
        why = self._refusal(known)
        if why is not None:
            self.refuse(why)
        else:
            self.sessions.add((known.turn.namespace, known.turn.session_id))
        return why is None

    def refuse(self, why: str) -> None:
        """Count a turn that was admitted, and that the form of the export has no place for."""
        self.left_out[why] += 1

    def _refusal(self, known: KnownTurn) -> str | None:
        turn, reward = known.turn, known.reward
        if turn.unstored is not None:
            return NOT_STORED
        if not turn.learn:
            return "no_consent"
        if reward is not None and is_excluded(self._orders, turn, reward):
            return "excluded"
        if not self._selection.admits(known):
            return "not_chosen"
        if reward is None:
            return "unrewarded"
        if reward.void:
            return "void"
        if not turn.token_ids:
            return "empty"
        if turn.tokenizer_digest != self._tokenizer:
            return "other_tokenizer"
        self.compared += 1
        return self._kept_out.refusal(turn)
