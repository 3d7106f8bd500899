"""Exclusions foreseen and ordered: which versions learned from what, and the way back to before the first of them.

The exclusion, the order to the release controller, the verdicts on candidates and the line of the audit trail are
written together, or none of it; while that is done, no version is published and no release is made."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from core.errors import Conflict, InvalidRequest, NotFound
from core.events import GateVerdict
from core.ids import InferenceId, PolicyRef, UserHash
from core.operations.exclusions import Exclusion, Foreseen, Wish
from core.operations.servable import NOW, Servable
from core.ports import Blobs, Clock, Store
from core.ports.exclusions import Written
from core.store.work import View, Work
from learner.versions.provenance import ancestry, learned_by, turns_of

_NEWEST: Final = 200  # versions among which the learner's newest is looked for
_TRIES: Final = 20
_TOOK: Final = ("seconds_reading", "seconds_updating", "seconds_publishing", "seconds_saving")


class _Uses(NamedTuple):
    """What one version learned from."""

    excluded: set[InferenceId]
    others: set[InferenceId]
    gone: int
    spoken: set[UserHash]  # of its rewards


class _Stand(NamedTuple):
    """Where releases and versions stand: what is foreseen holds while it is the same."""

    sequence: int
    newest: int
    live: PolicyRef | None


class OrdersOfExclusions:
    """`core.ports.exclusions.ExclusionOrders` upon the store and the versions' manifests."""

    def __init__(self, store: Store, blobs: Blobs, cluster: str, clock: Clock) -> None:
        self._store, self._blobs, self._cluster, self._clock = store, blobs, cluster, clock

    def foresee(self, wish: Wish) -> Foreseen:
        """Return what an exclusion would change; nothing does."""
        what = self._exclusion_of(wish)
        with self._store.look() as view:
            stand = self._stand(view)
        return self._foreseen(what, stand, {})

    def order(self, wish: Wish, why: str, by: str, written: Written) -> tuple[int, Foreseen]:
        """Exclude, and order the way back; return the number, and what changes."""
        what = self._exclusion_of(wish)
        uses: dict[PolicyRef, _Uses] = {}
        for _ in range(_TRIES):
            with self._store.look() as view:
                stand = self._stand(view)
            foreseen = self._foreseen(what, stand, uses)
            with self._store.work() as work:
                work.releases.lock()
                if self._stand(work) == stand:
                    return self._write(work, what, foreseen, why, by, written), foreseen
        raise Conflict("versions come faster than what an exclusion changes can be foreseen: pin the live one first")

    def _write(self, work: Work, what: Exclusion, foreseen: Foreseen, why: str, by: str, written: Written) -> int:
        now = self._clock.now()
        number = work.exclusions.add(what, why, by, now)
        given = {"exclusion_id": str(number)}
        if foreseen.rollback is not None:
            order_id = work.orders.give(self._cluster, "rollback", foreseen.rollback, why, by, now)
            given["order_id"] = str(order_id)
        for version in foreseen.refused:
            reason = f"learned, as a version before it may have, from what exclusion {number} takes out: {why}"
            work.policies.put_verdict(version, GateVerdict(action="refuse", why=reason, proposed=False))
        written(work, given)
        return number

    def _stand(self, view: View) -> _Stand:
        newest = next((policy.version.version for policy, _ in view.policies.newest(1)), 0)
        return _Stand(view.releases.last_sequence(), newest, view.releases.live(self._cluster))

    # ------------------------------------------------------------------------------------------ what is meant

    def _exclusion_of(self, wish: Wish) -> Exclusion:
        turns = self._turns_of(wish)
        if not (wish.users or turns or wish.begin or wish.end):
            raise InvalidRequest("say whose or which turns: users, turns, from, to or version", code="missing_field")
        if wish.begin is not None and wish.end is not None and wish.begin >= wish.end:
            raise InvalidRequest(f"from: {wish.begin.isoformat()} is not before to", param="from")
        return Exclusion(
            namespace=wish.namespace, users=frozenset(wish.users), turns=turns, begin=wish.begin, end=wish.end
        )

    def _turns_of(self, wish: Wish) -> frozenset[InferenceId]:
        named = frozenset(wish.turns)
        found = {turn.inference_id for turn in turns_of(named, self._store)}
        if missing := sorted(named - found):
            raise NotFound(f"no turn {missing[0]} in the store", param="turns", code="unknown_inference")
        if wish.version is None:
            return named
        with self._store.look() as view:
            if view.policies.get(wish.version) is None:
                message = f"no policy version {wish.version}; GET /v1/policies lists them"
                raise NotFound(message, param="version", code="unknown_version")
        learned = frozenset(reward.inference_id for reward in learned_by([wish.version], self._blobs))
        chosen = learned & named if named else learned
        if not chosen:
            which = "none of these turns" if named else "no turn that is known"
            raise InvalidRequest(
                f"version {wish.version} learned from {which}", param="version", code="nothing_excluded"
            )
        return chosen

    # ------------------------------------------------------------------------------------------ what changes

    def _foreseen(self, what: Exclusion, stand: _Stand, uses: dict[PolicyRef, _Uses]) -> Foreseen:
        """Follow the lineage of the learner's newest version, and find where it first learned from what is excluded."""
        lineage = [] if stand.live is None else self._lineage_upon(stand.live)
        for version in lineage:
            if version not in uses:
                uses[version] = self._uses_of(version, what)
        with self._store.look() as view:
            selected = view.turns.count(what)
        self._require_some(what, selected, [uses[version] for version in lineage])
        learned = set[InferenceId]().union(*(uses[version].excluded for version in lineage))
        gone = sum(uses[version].gone for version in lineage)
        first = next((place for place, version in enumerate(lineage) if uses[version].excluded), None)
        if first is None or stand.live is None:
            return Foreseen(selected=selected, gone=gone)
        back_to, soon, rollback = self._way_back(lineage, first, stand.live)
        abandoned = lineage[lineage.index(back_to) + 1 :]
        others = set[InferenceId]().union(*(uses[version].others for version in abandoned))
        updates, again_s, candidates = self._cost_of(abandoned)
        return Foreseen(
            selected=selected,
            learned=len(learned),
            gone=gone,
            abandoned=tuple(abandoned),
            updates=updates,
            again=len(others - learned),
            again_s=again_s,
            back_to=back_to,
            soon=soon,
            rollback=rollback,
            refused=candidates,
        )

    def _uses_of(self, version: PolicyRef, what: Exclusion) -> _Uses:
        rewards = list(learned_by([version], self._blobs))
        ids = {reward.inference_id for reward in rewards}
        turns = {turn.inference_id: turn for turn in turns_of(ids, self._store)}
        excluded = {
            reward.inference_id
            for reward in rewards
            if reward.inference_id in turns and what.covers(turns[reward.inference_id], reward)
        }
        return _Uses(excluded, ids - excluded, len(ids - turns.keys()), {u for each in rewards for u in each.said_by})

    def _require_some(self, what: Exclusion, selected: int, uses: Iterable[_Uses]) -> None:
        """Raise InvalidRequest where nothing is excluded, or by somebody's name nobody."""
        uses = list(uses)
        for user in sorted(what.users if len(what.users) > 1 or not selected else ()):
            with self._store.look() as view:
                has_turns = view.turns.count(Exclusion(namespace=what.namespace, users=frozenset((user,))))
            if not has_turns and not any(user in each.spoken for each in uses):
                message = f"user {user} has no turn, and spoke of none that a version learned from"
                raise InvalidRequest(message, param="users", code="nothing_excluded")
        if not selected and not any(each.excluded for each in uses):
            raise InvalidRequest(
                "no turn in the store is all of this, so nothing would be excluded", code="nothing_excluded"
            )

    def _lineage_upon(self, live: PolicyRef) -> list[PolicyRef]:
        """Return the lineage of the newest version that goes on from the live one, or is it."""
        with self._store.look() as view:
            newest = [policy.version for policy, _ in view.policies.newest(_NEWEST, live.policy)]
        lineages = (ancestry(self._store, version) for version in newest)
        return next((lineage for lineage in lineages if live in lineage), None) or ancestry(self._store, live)

    def _way_back(
        self, lineage: Sequence[PolicyRef], first: int, live: PolicyRef
    ) -> tuple[PolicyRef, Servable, PolicyRef | None]:
        """Return the version that is gone back to, how soon it serves, and which one is ordered to serve, if any.

        Raises Conflict where none before the first use can."""
        clean, abandoned = lineage[:first], lineage[first:]
        with self._store.look() as view:
            served = set(view.releases.live_history(self._cluster))
            soon = view.files.servable(clean)
            states = view.policies.states_of(abandoned)
        if live in clean:  # a canary's lane ends, and else only candidates go
            return (live, NOW, live) if "canary" in states.values() else (clean[-1], soon[clean[-1]], None)
        for version in reversed(clean):
            if version in served and soon[version].servable != "lost":
                return version, soon[version], version
        raise Conflict("no version from before the first use of it has served and can be served again")

    def _cost_of(self, abandoned: Sequence[PolicyRef]) -> tuple[int, float, tuple[PolicyRef, ...]]:
        """Return the updates that made these versions, the seconds they took, and those that are candidates."""
        with self._store.look() as view:
            made = [policy for version in abandoned if (policy := view.policies.get(version)) is not None]
            states = view.policies.states_of(abandoned)
        seconds = sum(policy.metrics.get(name, 0.0) for policy in made for name in _TOOK)
        candidates = tuple(version for version in abandoned if states.get(version) == "candidate")
        return sum(policy.updates for policy in made), round(seconds, 1), candidates
