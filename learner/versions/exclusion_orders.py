"""Orders of exclusions: which versions learned from the excluded turns, and the way back to before the first of them.

One transaction writes the exclusion, the order to the release controller, the verdicts on candidates and the line of
the audit trail; while it runs, no version is published and no release is made."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from core.errors import Conflict, InvalidRequest, NotFound
from core.events import GateVerdict
from core.ids import InferenceId, PolicyRef, UserHash
from core.operations.exclusions import Excluded, Exclusion, Findings, Foreseen, RewardKey, Wish, is_excluded
from core.operations.servable import NOW, Servable
from core.ports import Blobs, Clock, Store
from core.ports.exclusions import Written
from core.store.work import View, Work
from learner.versions.provenance import ancestry, learned_by, turns_of

_NEWEST: Final = 200  # versions that are searched for the learner's newest and for abandoned ones
_TRIES: Final = 20
_SERVES: Final = ("rollback", "promote", "pin")  # kinds of orders
_TOOK: Final = ("seconds_reading", "seconds_updating", "seconds_publishing", "seconds_saving")


class _Uses(NamedTuple):
    """What one version learned from."""

    meant: set[RewardKey]  # excluded by this exclusion
    taken_out: set[InferenceId]  # excluded by this exclusion or an earlier one
    others: set[InferenceId]
    gone: int
    spoken: set[UserHash]  # who spoke of its turns

    @property
    def learned(self) -> set[InferenceId]:
        return {inference_id for inference_id, _ in self.meant}


class _Stand(NamedTuple):
    """The state of releases and versions; a plan holds while it is the same.

    `goes_to`: the version that serves once the waiting orders are carried out; `goes_back`: a rollback leads there, so
    all later versions are left."""

    sequence: int
    newest: int
    newest_exclusion: int
    goes_to: PolicyRef | None
    goes_back: bool


class _Plan(NamedTuple):
    """What an exclusion changes: as it is shown, as it is stored, and the versions that are refused."""

    foreseen: Foreseen
    found: Findings
    refused: tuple[PolicyRef, ...] = ()


class OrdersOfExclusions:
    """`core.ports.exclusions.ExclusionOrders` upon the store and the versions' manifests."""

    def __init__(self, store: Store, blobs: Blobs, cluster: str, clock: Clock) -> None:
        self._store, self._blobs, self._cluster, self._clock = store, blobs, cluster, clock

    def foresee(self, wish: Wish) -> Foreseen:
        """Return what an exclusion would change, and change nothing."""
        what = self._exclusion_of(wish)
        with self._store.look() as view:
            stand = self._stand(view)
        return self._planned(what, stand, {}).foreseen

    def order(self, wish: Wish, why: str, by: str, written: Written) -> tuple[int, Foreseen]:
        """Exclude turns and order the way back; return the exclusion's number, and what changes."""
        what = self._exclusion_of(wish)
        uses: dict[PolicyRef, _Uses] = {}
        known: _Stand | None = None
        for _ in range(_TRIES):
            with self._store.look() as view:
                stand = self._stand(view)
            if known is not None and stand.newest_exclusion != known.newest_exclusion:
                uses = {}
            known, planned = stand, self._planned(what, stand, uses)
            with self._store.work() as work:
                work.releases.lock()
                if self._stand(work) == stand:
                    return self._write(work, what, planned, why, by, written), planned.foreseen
        raise Conflict("versions come faster than an exclusion can be planned: pin the live version first")

    def _write(self, work: Work, what: Exclusion, planned: _Plan, why: str, by: str, written: Written) -> int:
        now = self._clock.now()
        given, found, rollback = dict[str, str](), planned.found, planned.foreseen.rollback
        if rollback is not None:
            order_id = work.orders.give(self._cluster, "rollback", rollback, why, by, now)
            given["order_id"] = str(order_id)
            found = msgspec.structs.replace(found, order_id=order_id)
        number = work.exclusions.add(what, why, by, now, found)
        given["exclusion_id"] = str(number)
        for version in planned.refused:
            reason = f"it or a version before it learned from turns that exclusion {number} takes out: {why}"
            work.policies.put_verdict(version, GateVerdict(action="refuse", why=reason, proposed=False))
        written(work, given)
        return number

    def _stand(self, view: View) -> _Stand:
        newest = next((policy.version.version for policy, _ in view.policies.newest(1)), 0)
        newest_exclusion = view.exclusions.newest()
        waiting = [order for order in view.orders.unfinished(self._cluster) if order.kind in _SERVES]
        last = waiting[-1] if waiting else None
        live = view.releases.live(self._cluster)
        goes_back = last is not None and last.kind == "rollback"
        sequence = view.releases.last_sequence()
        return _Stand(sequence, newest, newest_exclusion, live if last is None else last.version, goes_back)

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

    def _planned(self, what: Exclusion, stand: _Stand, uses: dict[PolicyRef, _Uses]) -> _Plan:
        """Find the first versions that learned from these turns: on the lineage that goes on, and on abandoned ones.

        The lineage that goes on must also be free of all that was excluded before."""
        with self._store.look() as view:
            selected, before = view.turns.count(what), view.exclusions.after()
        lineage = self._lineage_upon(stand)
        for version in lineage:
            self._look_at(version, what, before, uses)
        first = next((place for place, version in enumerate(lineage) if uses[version].taken_out), None)
        abandoned = self._misled_elsewhere(lineage, first, what, before, uses)
        misled = [*lineage, *abandoned]
        self._require_some(what, selected, [uses[version] for version in misled])
        learned = set[InferenceId]().union(*(uses[version].learned for version in lineage))
        gone = sum(uses[version].gone for version in lineage)
        foreseen = Foreseen(selected=selected, learned=len(learned), gone=gone)
        roots = [version for version in abandoned if self._parent(version) not in abandoned]
        left, line = roots, list[PolicyRef]()
        if first is not None and stand.goes_to is not None:
            back_to, soon, rollback = self._way_back(lineage, first, stand.goes_to)
            line = lineage[lineage.index(back_to) + 1 :]
            left = [*roots, line[0] if rollback is not None else lineage[first]]
            foreseen = msgspec.structs.replace(
                foreseen, abandoned=tuple(line), back_to=back_to, soon=soon, rollback=rollback
            )
        again = [*abandoned, *line]
        others = set[InferenceId]().union(*(uses[version].others for version in again))
        taken_out = set[InferenceId]().union(*(uses[version].taken_out for version in misled))
        updates, again_s, states = self._cost_of(again)
        foreseen = msgspec.structs.replace(
            foreseen,
            updates=updates,
            again=len(others - taken_out),
            again_s=again_s,
            refused=tuple(version for version in again if states.get(version) == "candidate"),
        )
        keys = frozenset[RewardKey]().union(*(uses[version].meant for version in misled))
        refused = tuple(version for version in again if states.get(version) in ("candidate", "superseded"))
        return _Plan(foreseen, Findings(left=tuple(sorted(left)), learned=keys), refused)

    def _look_at(
        self, version: PolicyRef, what: Exclusion, before: Sequence[Excluded], uses: dict[PolicyRef, _Uses]
    ) -> None:
        if version in uses:
            return
        rewards = list(learned_by([version], self._blobs))
        ids = {reward.inference_id for reward in rewards}
        turns = {turn.inference_id: turn for turn in turns_of(ids, self._store)}
        there = [(turns[reward.inference_id], reward) for reward in rewards if reward.inference_id in turns]
        earlier = {reward.inference_id for turn, reward in there if is_excluded(turn, reward, before)}
        earlier |= ids.intersection(inference_id for each in before for inference_id, _ in each.found.learned)
        meant = {
            (reward.inference_id, reward.revision)
            for turn, reward in there
            if what.covers(turn, reward) and reward.inference_id not in earlier
        }
        taken_out = earlier.union(inference_id for inference_id, _ in meant)
        spoken = {user for reward in rewards for user in reward.said_by}
        uses[version] = _Uses(meant, taken_out, ids - taken_out, len(ids - turns.keys()), spoken)

    def _misled_elsewhere(
        self,
        lineage: Sequence[PolicyRef],
        first: int | None,
        what: Exclusion,
        before: Sequence[Excluded],
        uses: dict[PolicyRef, _Uses],
    ) -> list[PolicyRef]:
        """Return the newest versions outside the lineage that learned from these turns, or descend from one that did.

        Turns that an earlier exclusion covers do not count."""
        with self._store.look() as view:
            newest = [policy for policy, _ in reversed(view.policies.newest(_NEWEST))]
        misled, found = set(() if first is None else lineage[first:]), list[PolicyRef]()
        for policy in newest:
            if policy.version in lineage:
                continue
            self._look_at(policy.version, what, before, uses)
            if policy.parent in misled or uses[policy.version].meant:
                misled.add(policy.version)
                found.append(policy.version)
        return found

    def _parent(self, version: PolicyRef) -> PolicyRef | None:
        with self._store.look() as view:
            policy = view.policies.get(version)
        return None if policy is None else policy.parent

    def _require_some(self, what: Exclusion, selected: int, uses: Iterable[_Uses]) -> None:
        """Raise InvalidRequest where nothing is excluded, or where one of several users excludes nothing."""
        uses = list(uses)
        for user in sorted(what.users if len(what.users) > 1 or not selected else ()):
            with self._store.look() as view:
                has_turns = view.turns.count(Exclusion(namespace=what.namespace, users=frozenset((user,))))
            if not has_turns and not any(user in each.spoken for each in uses):
                message = f"user {user} has no turn, and spoke of no turn that a version learned from"
                raise InvalidRequest(message, param="users", code="nothing_excluded")
        if not selected and not any(each.meant for each in uses):
            raise InvalidRequest(
                "no turn in the store meets all of these conditions: nothing is excluded", code="nothing_excluded"
            )

    def _lineage_upon(self, stand: _Stand) -> list[PolicyRef]:
        """Return the lineage of the newest version that is, or descends from, the version that serves next."""
        if stand.goes_to is None:
            return []
        if stand.goes_back:
            return ancestry(self._store, stand.goes_to)
        with self._store.look() as view:
            newest = [policy.version for policy, _ in view.policies.newest(_NEWEST, stand.goes_to.policy)]
        for version in newest:
            lineage = ancestry(self._store, version)
            if stand.goes_to in lineage and not self._is_undone(lineage[lineage.index(stand.goes_to) + 1 :]):
                return lineage
        return ancestry(self._store, stand.goes_to)

    def _is_undone(self, versions: Sequence[PolicyRef]) -> bool:
        """Return whether one of these was rolled back, rejected or refused, so that nothing is built upon them."""
        with self._store.look() as view:
            states = set(view.policies.states_of(versions).values())
            verdicts = [policy.verdict for each in versions if (policy := view.policies.get(each)) is not None]
        is_refused = any(verdict is not None and verdict.action == "refuse" for verdict in verdicts)
        return is_refused or not states.isdisjoint(("rolled_back", "rejected"))

    def _way_back(
        self, lineage: Sequence[PolicyRef], first: int, live: PolicyRef
    ) -> tuple[PolicyRef, Servable, PolicyRef | None]:
        """Return the version to go back to, how soon it can serve, and the one that is ordered to serve, if any.

        Raises Conflict where no version from before the first use can serve."""
        clean, abandoned = lineage[:first], lineage[first:]
        with self._store.look() as view:
            served = set(view.releases.live_history(self._cluster))
            soon = view.files.servable(clean)
            states = view.policies.states_of(abandoned)
        if live in clean:  # a canary is rolled back; without one only candidates are refused
            return (live, NOW, live) if "canary" in states.values() else (clean[-1], soon[clean[-1]], None)
        for version in reversed(clean):
            if version in served and soon[version].servable != "lost":
                return version, soon[version], version
        raise Conflict("no version from before the first use has served and can serve again")

    def _cost_of(self, abandoned: Sequence[PolicyRef]) -> tuple[int, float, dict[PolicyRef, str]]:
        """Return the number of updates that made these versions, the seconds they took, and each version's state."""
        with self._store.look() as view:
            made = [policy for version in abandoned if (policy := view.policies.get(version)) is not None]
            states = view.policies.states_of(abandoned)
        seconds = sum(policy.metrics.get(name, 0.0) for policy in made for name in _TOOK)
        return sum(policy.updates for policy in made), round(seconds, 1), states
