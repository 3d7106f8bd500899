"""Erasure of an organisation: what was said in its namespaces first, by orders of their own, then its policy."""

from collections.abc import Callable, Collection, Sequence

from core.ids import PolicyName
from core.operations.erasures import Erasure, Step
from core.ports import Clock, Store
from core.records.erasing import NotYet, digest_of
from core.records.erasure_orders import give, part_of, redact_rest


class AwaitNamespaces:
    """Waits for the orders that erase what was said in the organisation's namespaces."""

    name = "namespaces"

    def __init__(self, store: Store) -> None:
        self._store = store

    def erase(self, order: Erasure) -> Step:
        return _awaited(self._store, order.parts)


def _awaited(store: Store, numbers: Sequence[int]) -> Step:
    """Return what orders for namespaces did. Raises NotYet while one of them is open."""
    with store.look() as view:
        parts = [part for number in numbers if (part := view.erasures.get(number)) is not None]
    if open_parts := [str(part.erasure_id) for part in parts if part.done_at is None]:
        raise NotYet(f"erasure {', '.join(open_parts)} of what was said in its namespaces")
    named = ", ".join(str(part.erasure_id) for part in parts)
    return Step(
        removed={"namespaces": len(parts)},
        digest=digest_of(part.statement for part in parts),
        note=f"each has a statement of its own: erasure {named}",
    )


class NamespacesAgain:
    """Erases its namespaces once more, when nobody answers in them: a process answers until it hears of the order."""

    name = "namespaces_again"

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def erase(self, order: Erasure) -> Step:
        numbers = order.parts
        if len(numbers) <= len(order.namespaces):
            numbers = self._give(order)
        return _awaited(self._store, numbers)

    def _give(self, order: Erasure) -> tuple[int, ...]:
        """Give an order for each namespace; return the numbers of all that there are by then."""
        asked = [part_of(order, namespace, self._clock.now()) for namespace in order.namespaces]
        with self._store.work() as work:
            given = [give(work, part) for part in asked]
            numbers = (*order.parts, *(part.erasure_id for part, _ in given))
            work.erasures.put_parts(order, numbers)
        for part, rest in given:
            redact_rest(self._store, part, rest)
        return numbers


class AwaitSettings:
    """Waits until the service was started without the policy: what still works for it would make its files anew."""

    name = "settings"

    def __init__(self, policies: Collection[str]) -> None:
        """`policies` are those of this process's settings. A learner elsewhere says itself when it lacks the policy."""
        self._policies = policies

    def erase(self, order: Erasure) -> Step:
        if order.subject in self._policies:
            raise NotYet(f"take [policies.{order.subject}] out of the settings, and start the service again")
        return Step(note="no process works for it any more")


class InPolicy:
    """The rows of its policy, and alarms about its namespaces."""

    name = "policy"

    def __init__(self, store: Store, scrub: Callable[[], None]) -> None:
        """`scrub` writes the store's files anew."""
        self._store, self._scrub = store, scrub

    def erase(self, order: Erasure) -> Step:
        with self._store.work() as work:
            removed = work.policy_rows.delete_all(PolicyName(order.subject), order.namespaces)
        self._scrub()
        return Step(removed=removed, note="its name, and those of its namespaces, are never given again")
