"""The route `GET /v1/overview`: how the service stands, and what to do next, in one answer."""

from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import Context
from api.access.plain import identity_of, json_response, only_parameters
from api.access.quotas.limits import ERRORS, REQUESTS
from api.access.services import ApiServices
from api.operator.figures.improvement import improvement
from api.operator.figures.next_steps import STUCK_TURNS, Facts, next_steps, state_of
from api.operator.health import readiness_of
from api.turns.lookup import read
from core.ids import Namespace, PolicyRef
from core.store.work import View

_ALARMS = 20  # of which is told


def overview_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["status"])
    services = context.services

    @router.get("/v1/overview")
    async def get_overview(request: Request) -> Response:
        """Return how the service stands and what to do next.

        `state` is `down`, `worse` (than it began, or than it was), `held` (by an alarm or an order), `stuck` (rewards
        come and nothing is released), `frozen`, or else what is said of the first version: `better`, `no difference`,
        `too early` or `first`. `next` says what
        is the matter, what to do, in which view of the console, and which orders would help; the most urgent comes
        first. `improvement` is the answer of `GET /v1/improvement`."""
        identity = identity_of(request)
        only_parameters(request)
        sees_all = "admin" in identity.scopes
        live = services.policy.live_version
        known = await read(services, lambda view: _known(view, services, identity.namespace, live, sees_all=sees_all))
        recent = await services.live_state.counts(identity.namespace)
        facts = Facts(
            **known,
            components=readiness_of(services)["components"],
            learns=services.learns,
            live=live.version,
            requests=recent.counts.get(REQUESTS, 0),
            errors=recent.counts.get(ERRORS, 0),
        )
        steps = next_steps(facts)
        return json_response(
            {
                "object": "overview",
                "state": state_of(steps, facts.improvement["verdict"]),
                "next": steps,
                "live": live,
                "live_since": facts.live_since,
                "pinned": facts.pinned,
                "held": facts.held,
                "improvement": facts.improvement,
            }
        )

    return router


def _known(
    view: View, services: ApiServices, namespace: Namespace, live: PolicyRef, *, sees_all: bool
) -> dict[str, Any]:
    now = services.clock.now()
    switches = view.fleet.switches(services.cluster)
    since = view.releases.live_since(services.cluster)
    newest = view.curves.first_worth(namespace, STUCK_TURNS)
    return {
        "improvement": improvement(view, namespace, live, now),
        "alarms": view.alarms.newest(None if sees_all else namespace, None, _ALARMS, only_open=True),
        "is_held": bool(view.alarms.holding_releases()),
        "pinned": None if switches.pinned is None else switches.pinned.version,
        "held": sorted(version.version for version in switches.held),
        "live_since": since,
        "rewarded_since": 0 if since is None else sum(turn.decided_at > since for turn in newest),
        "newest_reward": newest[0].decided_at if newest else None,
    }
