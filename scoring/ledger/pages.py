"""Loading whole sessions from the store."""

from collections.abc import Iterable

from core.operations.ledger import SessionKey
from core.store.ledger import by_namespace
from core.store.work import View
from scoring.ledger.bounds import kept
from scoring.rewards.state import Session


def load_sessions(view: View, keys: Iterable[SessionKey]) -> dict[SessionKey, Session]:
    """Load all that is known of these sessions; an unknown one is empty."""
    sessions = {key: Session(key=key) for key in keys}
    for namespace, ids in by_namespace(sessions):
        for row in view.ledger.sessions(namespace, ids):
            session = sessions[row.key]
            session.last_at, session.ended_at = row.last_at, row.ended_at
        for turn in view.ledger.turns(namespace, ids):
            sessions[SessionKey((namespace, turn.session_id))].add(turn)
        for session_id, heard in view.ledger.outcomes(namespace, ids):
            sessions[SessionKey((namespace, session_id))].hear(kept(heard))  # former builds stored all of its words
    return sessions
