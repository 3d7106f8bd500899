"""The route `GET /v1/policies/{version}/rollback`: what an order to go back to a version would leave behind."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import LARGEST_INTEGER, digits, identity_of, json_response, only_parameters
from api.operator.figures.improvement import RECENT, compared
from api.turns.lookup import read
from core.codec import to_builtins
from core.errors import NotFound
from core.events import PolicyVersion
from core.ids import Namespace, PolicyRef, base_ref
from core.store.work import View

_LOOKED_AT = 1000  # versions
_NEEDED = 30  # turns of either side, before their rewards are compared


def rollback_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["policies"])
    services = context.services

    @router.get("/v1/policies/{version}/rollback")
    async def foresee_rollback(request: Request, version: str) -> Response:
        """Return what a rollback to this version would leave behind; it changes nothing.

        That is the versions that went live since and were not taken back, their updates, the turns they learned from,
        the span of these turns' feedback, and how much more the caller's namespace rewarded these versions than this
        one. `servable` says whether the version is there, or is made again first, for about `about_s` seconds, or is
        `lost`, and why."""
        identity = identity_of(request)
        only_parameters(request)
        number = digits(version, LARGEST_INTEGER)
        found = None
        if number is not None:
            found = await read(
                services, lambda view: _foreseen(view, services.cluster, identity.namespace, base_ref(number))
            )
        if found is None:
            raise NotFound(f"no policy version {version}", param="version", code="unknown_version")
        return json_response(found)

    return router


def _foreseen(view: View, cluster: str, namespace: Namespace, version: PolicyRef) -> dict[str, Any] | None:
    if view.policies.get(version) is None:
        return None
    undone = _undone(view, cluster, version)
    known = [policy for policy, _ in view.policies.newest(_LOOKED_AT) if policy.version in undone]
    turns = view.curves.worth(namespace, RECENT)
    theirs = [turn for turn in turns if turn.version in undone]
    its = [turn for turn in turns if turn.version == version]
    return {
        "object": "rollback",
        "version": version,
        "versions": sorted(undone),
        "counted": len(known),
        "updates": sum(policy.updates for policy in known),
        "turns": sum(policy.turns for policy in known),
        "feedback_hours": _span(known) / timedelta(hours=1),
        **to_builtins(view.files.servable([version])[version]),
        "reward": compared(theirs, its, _NEEDED, _NEEDED),
    }


def _undone(view: View, cluster: str, version: PolicyRef) -> frozenset[PolicyRef]:
    """Return what the release controller would take back: what went live since and is not yet, and a canary's lane."""
    served = view.releases.live_history(cluster)
    since = served[served.index(version) + 1 :] if version in served else []
    states = view.policies.states_of(since)
    taken = [each for each in since if states[each] != "rolled_back"]
    running = view.experiments.running(cluster)
    return frozenset(taken if running is None else (*taken, *running.versions)) - {version}


def _span(policies: Sequence[PolicyVersion]) -> timedelta:
    """Return the time from the first to the last of the outcomes that the versions learned from."""
    arrivals = [arrival for policy in policies for arrival in policy.outcome_arrivals]
    return max(arrivals) - min(arrivals) if arrivals else timedelta()
