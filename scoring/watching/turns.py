"""The turns in memory, by id: each for as long as some window holds it, and always up to date."""

from collections.abc import Callable, Iterable

from core.events import Outcome
from core.ids import InferenceId, Namespace, SessionId
from scoring.monitors import WatchedTurn

Change = Callable[[WatchedTurn], WatchedTurn]


class WatchedTurns:
    def __init__(self) -> None:
        self._turns: dict[InferenceId, WatchedTurn] = {}
        self._holders: dict[InferenceId, int] = {}
        self._sessions: dict[tuple[Namespace, SessionId], set[InferenceId]] = {}

    def __contains__(self, inference_id: InferenceId) -> bool:
        return inference_id in self._turns

    def __len__(self) -> int:
        return len(self._turns)

    def __getitem__(self, inference_id: InferenceId) -> WatchedTurn:
        return self._turns[inference_id]

    def get(self, ids: Iterable[InferenceId]) -> list[WatchedTurn]:
        return list(map(self._turns.__getitem__, ids))

    def hold(self, turn: WatchedTurn) -> WatchedTurn:
        """Add a holder, and return the turn: one that is known already stays as it is known."""
        inference_id = turn.inference_id
        if inference_id not in self._turns:
            self._turns[inference_id] = turn
            self._holders[inference_id] = 0
            self._sessions.setdefault((turn.namespace, turn.session_id), set()).add(inference_id)
        self._holders[inference_id] += 1
        return self._turns[inference_id]

    def release(self, inference_id: InferenceId) -> None:
        """Remove a holder; the turn goes with the last one."""
        self._holders[inference_id] -= 1
        if self._holders[inference_id]:
            return
        del self._holders[inference_id]
        turn = self._turns.pop(inference_id)
        session = turn.namespace, turn.session_id
        self._sessions[session].discard(inference_id)
        if not self._sessions[session]:
            del self._sessions[session]

    def change(self, inference_id: InferenceId, change: Change) -> bool:
        """Change a turn; return whether it is known."""
        turn = self._turns.get(inference_id)
        if turn is not None:
            self._turns[inference_id] = change(turn)
        return turn is not None

    def about(self, outcome: Outcome) -> list[InferenceId]:
        """Return the turns that an outcome is about: its own, or those of its session that came before it.

        They are of its namespace: what another one says of a turn is not heard."""
        if outcome.inference_id is not None:
            named = self._turns.get(outcome.inference_id)
            return [named.inference_id] if named is not None and named.namespace == outcome.namespace else []
        if outcome.session_id is None:
            return []
        until_s = outcome.received_at.timestamp()
        known = self._sessions.get((outcome.namespace, outcome.session_id), ())
        return [each for each in known if self._turns[each].at_s <= until_s]
