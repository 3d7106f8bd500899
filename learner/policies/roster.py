"""The roster: which policies there are, and which of them learn from a turn."""

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Final

from core.ids import BASE, Namespace, PolicyName
from core.settings.policies import PolicySettings, PolicySharingSettings, policy_of, teaches_base

_BASES_WEIGHT: Final = 1.0
_SHARING: Final = PolicySharingSettings()


class Roster:
    """The base policy, and those of organisations. A turn is learned from by the policy that speaks for its user.

    The base policy, which speaks for everybody, learns from an organisation's turns only where sharing says so, also
    from those of workloads that the organisation leaves to it."""

    def __init__(
        self,
        policies: Mapping[str, PolicySettings] = MappingProxyType({}),
        sharing: PolicySharingSettings = _SHARING,
    ) -> None:
        self._policies, self._sharing = policies, sharing
        self.weights = {BASE: _BASES_WEIGHT} | {PolicyName(name): each.weight for name, each in policies.items()}
        """The policies, the base first, each with its share of the learner's turns."""
        self.learners_of = cache(self._learners_of)

    def _learners_of(self, namespace: Namespace, workload: str) -> frozenset[PolicyName]:
        """Return the policies that learn from the turns of a workload."""
        speaks = policy_of(self._policies, namespace, workload)
        base = {BASE} if teaches_base(self._policies, self._sharing, namespace) else set()
        return frozenset(({speaks} - {BASE}) | base)

    def namespaces_of(self, policy: PolicyName) -> Sequence[Namespace]:
        """Return the namespaces that an organisation's policy speaks for; none for the base, which has no list."""
        return [Namespace(each) for each in self._policies[policy].namespaces] if policy in self._policies else []


BASE_ALONE: Final = Roster()
"""No organisation has a policy of its own."""
