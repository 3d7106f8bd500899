"""Implements core.ports.Traffic from the store: which experiments run, and who is in each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import msgspec

from core.ids import BASE, Namespace, PolicyName, PolicyRef, Version
from core.operations.fleet import LIVE, Assignment, Experiment
from core.ports import Store
from core.settings import ReleaseSettings
from core.stages.stage import Stage
from core.store.work import View
from serving.releases.canaries.assignment import Shares, assign
from serving.releases.canaries.rings import Members

_POLL_S = 0.1
_WOKEN_S = 5.0  # where the store tells of changes


_NO_MEMBERS: Final[Mapping[PolicyName, Members]] = MappingProxyType({})


@dataclass(frozen=True)
class Rules:
    """Who has which arm of a policy, as the store says now."""

    shares: Shares
    arms: dict[str, Assignment]  # all but live, without their propensity
    rings: frozenset[str] = frozenset()  # whose users have the canary

    def assign(self, unit: str, named_by: frozenset[str]) -> Assignment:
        """Return a unit's arm; `named_by`: the rings that name it. Whom one names is never held back."""
        if named_by & self.rings:
            return self.arms["canary"]
        shares = replace(self.shares, holdback=0.0) if named_by else self.shares
        arm, propensity = assign(shares, unit)
        return msgspec.structs.replace(self.arms.get(arm, LIVE), arm=arm, propensity=propensity)


class StoreTraffic(Stage):
    """A stage that caches the running experiment of each policy from the store; `assign` uses only the cache.

    The end of an experiment is noticed within a tenth of a second; the routers learn sooner which engines to avoid."""

    def __init__(
        self,
        store: Store,
        cluster: str,
        settings: ReleaseSettings,
        policies: Sequence[PolicyName] = (BASE,),
        members: Mapping[PolicyName, Members] = _NO_MEMBERS,
    ) -> None:
        """Make the traffic of these policies; `members`: whom the rings of a policy name, where it has any."""
        super().__init__()
        self._store, self._cluster, self._settings, self._policies = store, cluster, settings, policies
        self._members = members
        self._rules: dict[PolicyName, Rules] = {}
        store.wake(self.woken)
        self._read()

    def assign(self, unit: str, policy: PolicyName = BASE, namespace: Namespace | None = None) -> Assignment:
        rules, members = self._rules.get(policy), self._members.get(policy)
        if rules is None:
            return LIVE
        return rules.assign(unit, frozenset() if members is None else members.rings_of(unit, namespace))

    def tick(self) -> float:
        self._read()
        return _WOKEN_S if self._store.wakes else _POLL_S

    def _read(self) -> None:
        with self._store.look() as view:
            found = {policy: self._rules_of(view, policy) for policy in self._policies}
        self._rules = {policy: rules for policy, rules in found.items() if rules is not None}

    def _rules_of(self, view: View, policy: PolicyName) -> Rules | None:
        experiment = view.experiments.running(self._cluster, policy) or self._on_its_way(view, policy)
        live, first = view.releases.live(self._cluster, policy), PolicyRef(policy, Version(1))
        holdback = 0.0 if live in (None, first) else self._settings.holdback.share
        if experiment is None and not holdback:
            return None
        number = None if experiment is None else experiment.experiment_id
        arms = {"holdback": Assignment(arm="holdback", version=first, experiment_id=number)}
        arms["live"] = Assignment(experiment_id=number)
        if experiment is not None:
            arms["canary"] = Assignment(arm="canary", version=experiment.canary, experiment_id=number)
        return Rules(
            Shares(
                canary=0.0 if experiment is None else experiment.share,
                holdback=holdback,
                canary_salt="" if experiment is None else experiment.salt,
                holdback_salt=self._settings.holdback.salt,
            ),
            arms,
            frozenset(() if experiment is None else experiment.rings),
        )

    def _on_its_way(self, view: View, policy: PolicyName) -> Experiment | None:
        """Return the last ring's experiment while its version goes on to all: who has it keeps it meanwhile."""
        if policy not in self._members:
            return None
        last = next(iter(view.experiments.newest(self._cluster, 1, policy)), None)
        if last is None or not last.rings or last.verdict != "promote":
            return None
        return last if view.policies.state_of(last.canary) == "canary" else None
