"""Whose policy a caller may see and order: an organisation's key its own, one with the scope admin any."""

from fastapi import Request

from api.access.identity import Identity
from api.access.plain import identity_of
from api.access.services import ApiServices
from core.errors import NotFound
from core.ids import BASE, PolicyName, PolicyRef
from core.operations.alarms import StoredAlarm
from core.settings.policies import owner_of, policy_of


def own_policy(services: ApiServices, identity: Identity) -> PolicyName:
    """Return the policy that the caller's namespace belongs to."""
    return owner_of(services.policies, identity.namespace)


def policy_asked(services: ApiServices, request: Request) -> PolicyName:
    """Return the policy that the query parameter `policy` names, or the caller's own.

    Raises NotFound for one that is not known, or not for this caller to see."""
    identity = identity_of(request)
    own = own_policy(services, identity)
    asked = request.query_params.get("policy", own)
    if asked != own and ((asked != BASE and asked not in services.policies) or "admin" not in identity.scopes):
        raise NotFound(f"no policy {asked}", param="policy", code="unknown_policy")
    return PolicyName(asked)


def version_asked(services: ApiServices, identity: Identity, text: str) -> PolicyRef:
    """Return the version that `7` or `acme@7` names. Raises NotFound for none, and for one of another's policy."""
    try:
        version = PolicyRef.parse(text)
    except ValueError:
        version = None
    if version is None or (version.policy != own_policy(services, identity) and "admin" not in identity.scopes):
        raise NotFound(f"no policy version {text}", param="version", code="unknown_version")
    return version


def require_order(identity: Identity, version: PolicyRef) -> None:
    """Raise Forbidden unless the caller may give orders about a version that it sees.

    An organisation's own takes the scope `operate`; the base policy is everybody's, and takes `admin`."""
    identity.require("admin" if version.policy == BASE else "operate")


def namespace_about(services: ApiServices, identity: Identity, version: PolicyRef) -> str:
    """Return whose things an order about a version changes, for the trail; "" for the base policy, everybody's.

    An organisation may have several namespaces: it is the caller's, if that is one of them, else the first."""
    own = services.policies.get(version.policy)
    if own is None:
        return ""
    return identity.namespace if identity.namespace in own.namespaces else own.namespaces[0]


def is_of_policy(services: ApiServices, alarm: StoredAlarm, policy: PolicyName) -> bool:
    """Return whether an alarm is about what this policy answers."""
    return policy_of(services.policies, alarm.opening.namespace, alarm.opening.workload) == policy
