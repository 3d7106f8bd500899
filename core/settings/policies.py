"""Policies of organisations: whom each speaks for, and from whom the base policy learns."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from core.ids import BASE, Namespace, PolicyName
from core.section import Section
from core.settings.http.api import WORKLOAD_NAME
from core.settings.release import Rings, RingSettings

_Namespaces = tuple[Annotated[str, Field(min_length=1)], ...]


class PolicySettings(Section):
    """An organisation, whose policy has versions and releases of its own: adapters upon the base, or whole models."""

    namespaces: _Namespaces = Field(min_length=1)
    """The namespaces that it speaks for; each belongs to one policy at most."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the learner's turns, against the weights of the others; the base policy's is 1."""
    workloads: dict[Annotated[str, Field(pattern=WORKLOAD_NAME)], str] = Field(default={})
    """Workloads of these namespaces that another policy speaks for, and which: `autocomplete = "base"`."""
    rings: Rings | None = None
    """The rings of its own versions; None: those of `release.rings` in which it has users; an empty list: none."""


class PolicySharingSettings(Section):
    """What the base policy may learn from. It always learns from namespaces without a policy of their own."""

    base_learns_from: Literal["all", "none"] | _Namespaces = "all"
    """The namespaces with a policy of their own whose turns the base policy learns from as well: all, none, or those
    named."""


def _checked(policies: dict[str, PolicySettings]) -> dict[str, PolicySettings]:
    """Return the policies as they are. Raises ValueError naming the field that contradicts another."""
    if BASE in policies:
        raise ValueError(f"{BASE}: this policy is of whoever has none of their own, and has no section")
    owners: dict[str, str] = {}
    for name, policy in policies.items():
        for namespace in policy.namespaces:
            if namespace in owners:
                raise ValueError(f"{name}.namespaces: {namespace} is of policy {owners[namespace]} already")
            owners[namespace] = name
        for workload, other in policy.workloads.items():
            if other != BASE and other not in policies:
                raise ValueError(f"{name}.workloads.{workload}: there is no policy {other}")
    for name, policy in policies.items():
        for ring in policy.rings or ():
            strange = next((place for place in sorted(ring.places) if not _answers(policies, name, place)), None)
            if strange is not None:
                raise ValueError(f"{name}.rings.{ring.name}: nobody in namespace {strange} is answered by {name}")
    return policies


PolicyTable = Annotated[
    dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")], PolicySettings], AfterValidator(_checked)
]
"""Policies by their names, which agree with each other."""


EMPTY: Final[Mapping[str, PolicySettings]] = MappingProxyType({})
"""No policy but the base policy."""


def names_of(policies: Mapping[str, PolicySettings]) -> tuple[PolicyName, ...]:
    """Return all policies, the base policy first."""
    return (BASE, *map(PolicyName, policies))


def owner_of(policies: Mapping[str, PolicySettings], namespace: Namespace) -> PolicyName:
    """Return the policy that a namespace belongs to: the base policy where no other names it."""
    return PolicyName(next((name for name, policy in policies.items() if namespace in policy.namespaces), BASE))


def policy_of(policies: Mapping[str, PolicySettings], namespace: Namespace, workload: str) -> PolicyName:
    """Return the policy that answers a workload of a namespace: its own, unless it gives the workload to another."""
    owner = owner_of(policies, namespace)
    return PolicyName(policies[owner].workloads.get(workload, owner)) if owner in policies else owner


def rings_of(
    policies: Mapping[str, PolicySettings], common: Sequence[RingSettings], policy: PolicyName
) -> tuple[RingSettings, ...]:
    """Return the rings of a policy: its own, else those of the `common` ones that its users may be in.

    A version would wait for ever in a ring that nobody can be in."""
    own = policies[policy].rings if policy in policies else None
    if own is not None:
        return own
    return tuple(
        ring for ring in common if ring.share or any(_answers(policies, policy, place) for place in ring.places)
    )


def _answers(policies: Mapping[str, PolicySettings], policy: str, namespace: str) -> bool:
    """Return whether a policy answers some workload of a namespace."""
    owner = owner_of(policies, Namespace(namespace))
    return policy == owner or (owner in policies and policy in policies[owner].workloads.values())


def teaches_base(policies: Mapping[str, PolicySettings], sharing: PolicySharingSettings, namespace: Namespace) -> bool:
    """Return whether the base policy may learn from a namespace."""
    if owner_of(policies, namespace) == BASE or sharing.base_learns_from == "all":
        return True
    return sharing.base_learns_from != "none" and namespace in sharing.base_learns_from
