"""The orders to exclude turns, as a learner knows them: which turns they keep out, and where a lineage used them."""

from collections.abc import Collection

from core.events import Completion, Reward
from core.ids import BASE, PolicyName, PolicyRef
from core.model.learned_from import Use, lineage_of, select_turns, uses
from core.operations.exclusions import Exclusion, is_excluded
from core.ports import Blobs, Clock, Store


class Orders:
    """The orders of a store, the oldest first, taken when there is news."""

    def __init__(self, store: Store, clock: Clock, policies: Collection[PolicyName] = (BASE,)) -> None:
        """`policies`: those whose learners take an order together."""
        self._store, self._clock, self._policies = store, clock, policies
        self.stamp = (0, 0)
        self.given: list[Exclusion] = []

    def look(self) -> None:
        """Take new orders, all policies' learners at the same time."""
        with self._store.look() as view:
            is_news = view.exclusions.stamp() != self.stamp
        if is_news:
            with self._store.work() as work:
                self.given = work.exclusions.take(self._clock.now(), self._policies)
                self.stamp = work.exclusions.stamp()

    def read_again(self) -> None:
        with self._store.look() as view:
            self.given = view.exclusions.in_order()


class KnownExclusions:
    """The orders, as one policy's learner obeys them."""

    def __init__(self, orders: Orders, store: Store, blobs: Blobs, policy: PolicyName = BASE) -> None:
        self._all, self._store, self._blobs, self._policy = orders, store, blobs, policy
        self._stamp = orders.stamp
        self._sound: dict[PolicyRef, PolicyRef] = {}
        self.obeyed = 0
        """The number of the newest order whose past use was looked for, as the journal has it."""

    def take(self) -> list[Exclusion]:
        """Return the orders that are not obeyed yet, the oldest first: whoever lifts one now comes too late."""
        if self._stamp != self._all.stamp:
            self._stamp, self._sound = self._all.stamp, {}
        new = (each for each in self._all.given if each.exclusion_id > self.obeyed)
        return [each for each in new if not each.is_withdrawn and not each.failed_in(self._policy)]

    def read_again(self) -> None:
        """Read the orders again, since the learner has reported on some."""
        self._all.read_again()
        self._sound = {}

    def covers(self, turn: Completion, reward: Reward) -> bool:
        """Return whether the turn must not train with this reward."""
        return is_excluded(self._all.given, turn, reward)

    def uses_on(self, version: PolicyRef) -> list[Use]:
        """Return what each version of the lineage up to this one used of what is excluded now.

        What an order means that could not be obeyed counts as any other: it stays learned."""
        orders = [each for each in self._all.given if not each.failed_in(self._policy)]
        with self._store.look() as view:
            lineage = lineage_of(view, view.policies.get(version))
            return list(uses(view, self._blobs, lineage, select_turns(view, orders)))

    def newest_sound(self, version: PolicyRef) -> PolicyRef:
        """Return the newest version on the way to this one that learned from nothing excluded: mostly itself."""
        if not self._all.given:
            return version
        if version not in self._sound:
            found = self.uses_on(version)
            first = next((place for place, use in enumerate(found) if use.found), len(found))
            self._sound[version] = found[max(0, first - 1)].policy.version
        return self._sound[version]
