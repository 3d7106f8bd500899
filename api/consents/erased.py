"""What is erased, as a process of the API knows it: it looks each second (`api.operator.erasures.forgetting`)."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from core.errors import Forbidden
from core.events import Completion
from core.ids import Namespace
from core.operations.erasures import Erasure

_KEEP: Final = timedelta(days=1)
"""Longer than any answer takes: a turn that began before an order may end after everything else of it is erased."""
_Subject = tuple[Namespace, str, str]


class KnownErasures:
    """Organisations whose requests are refused, and orders to erase that also cover answers still under way."""

    def __init__(self) -> None:
        self._organisations: dict[str, str] = {}
        self._until: dict[_Subject, datetime] = {}

    def know(self, orders: Iterable[Erasure]) -> None:
        """Learn of all orders for organisations."""
        self._organisations = {name: order.subject for order in orders for name in order.namespaces}

    def note(self, order: Erasure) -> None:
        """Learn of one order, and forget orders so old that every turn under way has begun after them."""
        oldest = order.ordered_at - _KEEP
        self._until = {subject: until for subject, until in self._until.items() if until > oldest}
        subjects = [(order.namespace, order.kind, order.subject)]
        if order.kind != "namespace":
            subjects += [(order.namespace, "session", session) for session in order.sessions]
        for subject in subjects:
            self._until[subject] = max(order.ordered_at, self._until.get(subject, order.ordered_at))

    def check(self, namespace: Namespace) -> None:
        """Raise Forbidden where a namespace's organisation is erased."""
        organisation = self._organisations.get(namespace)
        if organisation is not None:
            raise Forbidden(
                f"namespace {namespace} was erased with the organisation {organisation}",
                code="organisation_erased",
            )

    def means(self, turn: Completion) -> bool:
        """Return whether an order covers a turn: one for its user, session or namespace that came after the turn."""
        if not self._until:
            return False
        named = [("session", str(turn.session_id)), ("namespace", str(turn.namespace))]
        if turn.user_id is not None:
            named.append(("user", turn.user_id))
        untils = [self._until.get((turn.namespace, kind, subject)) for kind, subject in named]
        return any(until is not None and turn.received_at < until for until in untils)
