"""The route `GET /v1/organisations`: how each policy stands, with its namespaces, its alarms and what they used."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import Context
from api.access.own_policy import is_of_policy, own_policy
from api.access.plain import identity_of, json_response, only_parameters
from api.access.services import ApiServices
from api.turns.lookup import read
from core.codec import to_builtins
from core.ids import BASE, PolicyName
from core.operations.alarms import StoredAlarm
from core.operations.quotas import Account, Use, month_of
from core.settings.policies import names_of
from core.store.work import View


def organisations_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["organisations"])
    services = context.services

    @router.get("/v1/organisations")
    async def list_organisations(request: Request) -> Response:
        """Return the policies, the base policy first; a key without the scope admin sees its own.

        `state` is `erased` (by the order `erasure_id`), `starting` (no version serves yet), `pinned`, `held` (by an
        operator or an alarm), `canary` or `steady`; `month` has what the namespaces used of their quotas, and is null
        where none of them has one: then nothing is counted."""
        identity = identity_of(request)
        only_parameters(request)
        own = own_policy(services, identity)
        chosen = names_of(services.policies) if "admin" in identity.scopes else (own,)
        month = month_of(services.clock.now())

        def look(view: View) -> list[dict[str, Any]]:
            alarms = view.alarms.that_are_open()
            erased = {each.subject: each.erasure_id for each in view.erasures.of_organisations()}
            found = [_described(services, view, policy, alarms, month) for policy in chosen]
            return [_marked(each, erased.get(each["policy"])) for each in found]

        data = await read(services, look)
        return json_response({"object": "list", "month": month, "data": data})

    return router


def _described(
    services: ApiServices, view: View, policy: PolicyName, alarms: Sequence[StoredAlarm], month: str
) -> dict[str, Any]:
    cluster, own = services.cluster, services.policies.get(policy)
    switches = view.fleet.switches(cluster, policy)
    running = view.experiments.running(cluster, policy)
    mine = [alarm for alarm in alarms if is_of_policy(services, alarm, policy)]
    live = view.releases.live(cluster, policy)
    states = {
        "starting": live is None,
        "pinned": switches.pinned is not None,
        "held": bool(switches.held) or any(alarm.holds_releases for alarm in mine),
        "canary": running is not None,
    }
    return {
        "policy": policy,
        "namespaces": [] if own is None else list(own.namespaces),
        "workloads": {} if own is None else dict(own.workloads),
        "live": live,
        "live_since": view.releases.live_since(cluster, policy),
        "state": next((state for state, holds in states.items() if holds), "steady"),
        "canary": None if running is None else to_builtins(running),
        "versions": view.policies.count_states(policy),
        "alarms": {
            "open": len(mine),
            "critical": sum(alarm.opening.severity == "critical" for alarm in mine),
            "hold_releases": sum(alarm.holds_releases for alarm in mine),
        },
        "month": None if policy == BASE or own is None else _used(services, view, own.namespaces, month),
    }


def _marked(described: dict[str, Any], erasure_id: int | None) -> dict[str, Any]:
    return described | {"erasure_id": erasure_id} | ({} if erasure_id is None else {"state": "erased"})


def _used(services: ApiServices, view: View, namespaces: Sequence[str], month: str) -> Mapping[str, Any] | None:
    """Return what those of the namespaces used that have a quota, and what they may use; None: none has one."""
    counted = [name for name in namespaces if name in services.quotas.namespaces]
    if not counted:
        return None
    used = view.spending.of_accounts(month, [Account("namespace", name, name) for name in counted])
    total = Use()
    for use in used.values():
        total = total.plus(use)
    quotas = [services.quotas.namespaces[name] for name in counted]
    return {
        **total._asdict(),
        "requests_per_month": _sum([quota.requests_per_month for quota in quotas]),
        "tokens_per_month": _sum([quota.tokens_per_month for quota in quotas]),
    }


def _sum(limits: Sequence[int | None]) -> int | None:
    """Return what all may use together; None where one has no limit."""
    bounded = [limit for limit in limits if limit is not None]
    return sum(bounded) if len(bounded) == len(limits) else None
