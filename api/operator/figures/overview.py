"""The route `GET /v1/overview`: how the service stands, and what to do next, in one answer."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters
from api.access.quotas.limits import ERRORS, REQUESTS
from api.access.services import ApiServices
from api.operator.figures.improvement import improvement
from api.operator.figures.next_steps import STUCK_TURNS, Loudest, StepFacts, is_attack, named_in, next_steps, state_of
from api.operator.health import readiness_of
from api.turns.lookup import read
from core.codec import to_builtins
from core.ids import Namespace, PolicyRef, base_ref
from core.operations.alarms import StoredAlarm
from core.store.work import View

_RELEASES = 20  # of which it is told how often there is one
_GAPS = 5  # between releases: of fewer nobody knows what is usual
_ALARMS = 20  # of which is told
_ATTACKED = 1000  # turns among which who attacks is sought
_LOUD = 0.1  # of their reward, from which on somebody is named


def overview_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["status"])
    services = context.services

    @router.get("/v1/overview")
    async def get_overview(request: Request) -> Response:
        """Return how the service stands and what to do next.

        `state` is `down`, `attacked` (by what users send), `worse` (than it began, or than it was), `held` (by an alarm
        or an order), `stuck` (rewards come and nothing is released), `frozen`, or else what is said of the first
        version: `better`, `no difference`, `too early` or `first`. `next` says what is the matter, what to do, in which
        view of the console and by which `search`, and which orders would help; the most urgent comes first.
        `held_by_alarm` says whether an alarm holds releases, of whatever namespace. `improvement` is the answer of
        `GET /v1/improvement`; `soon` says of the versions that it names as first and best how soon each could serve, as
        `GET /v1/policies` does."""
        identity = identity_of(request)
        only_parameters(request)
        sees_all = "admin" in identity.scopes
        live = services.policy.live_version
        known = await read(services, lambda view: _known(view, services, identity.namespace, live, sees_all=sees_all))
        recent = await services.live_state.counts(identity.namespace)
        facts = StepFacts(
            **known,
            components=readiness_of(services)["components"],
            learns=services.learns,
            user_share=services.user_share,
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
                "held_by_alarm": facts.is_held,
                "improvement": facts.improvement,
                "soon": to_builtins(facts.soon),
            }
        )

    return router


def _known(
    view: View, services: ApiServices, namespace: Namespace, live: PolicyRef, *, sees_all: bool
) -> dict[str, Any]:
    now = services.clock.now()
    switches = view.fleet.switches(services.cluster)
    went_live = view.releases.went_live(services.cluster, _RELEASES)
    since = went_live[0] if went_live else None
    newest = view.curves.first_worth(namespace, STUCK_TURNS)
    alarms = view.alarms.newest(None if sees_all else namespace, None, _ALARMS, only_open=True)
    improved = improvement(view, namespace, live, now)
    soon = view.files.servable(base_ref(version) for version in named_in(improved, alarms))
    return {
        "improvement": improved,
        "soon": {version.version: found for version, found in soon.items()},
        "alarms": alarms,
        "loudest": _loudest(view, alarms),
        "is_held": bool(view.alarms.holding_releases()),
        "canary": view.experiments.running(services.cluster),
        "pinned": None if switches.pinned is None else switches.pinned.version,
        "held": sorted(version.version for version in switches.held),
        "live_since": since,
        "usual_s": _usual_s(went_live),
        "rewarded_since": 0 if since is None else sum(turn.decided_at > since for turn in newest),
        "newest_reward": newest[0].decided_at if newest else None,
    }


def _usual_s(went_live: Sequence[datetime]) -> float | None:
    """Return the median time from one of these releases, the newest first, to the next; None of fewer than six."""
    gaps_s = [(later - earlier).total_seconds() for later, earlier in pairwise(went_live)]
    return median(gaps_s) if len(gaps_s) >= _GAPS else None


def _loudest(view: View, alarms: Sequence[StoredAlarm]) -> dict[str, Loudest]:
    """Return who has most of the absolute reward where somebody attacks, if that is much, by the alarm's id."""
    found = {}
    for alarm in filter(is_attack, alarms):
        masses: defaultdict[tuple[Literal["user", "session"], str], float] = defaultdict(float)
        for turn in view.curves.worth(alarm.opening.namespace, _ATTACKED):
            if turn.workload == alarm.opening.workload:
                who: tuple[Literal["user", "session"], str]
                who = ("session", turn.session_id) if turn.user_id is None else ("user", turn.user_id)
                masses[who] += abs(turn.value)
        (kind, name), mass = max(masses.items(), key=lambda each: each[1], default=(("user", ""), 0.0))
        if mass > _LOUD * sum(masses.values()):
            found[alarm.alarm_id] = Loudest(kind, name, mass / sum(masses.values()))
    return found
