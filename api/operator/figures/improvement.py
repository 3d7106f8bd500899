"""The route `GET /v1/improvement`: whether the model is better than the one it began as, and as good as it ever was.

Where a holdback runs, its users' turns are what the first version does at the same time; else the oldest rewards that
are kept are what it did then, and users may have changed since."""

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from statistics import fmean
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters
from api.operator.figures.comparison import TOO_EARLY, compare
from api.operator.figures.lately import lately
from api.turns.lookup import read
from core.ids import Namespace, PolicyRef
from core.store.newest.curves import Worth
from core.store.work import View

RECENT = 5000  # revisions of rewards that are looked at
_OLDEST = 1000  # of them, for the first version where no holdback runs
MOST_TURNS = 1000  # of either side
_MOST_HELD_BACK = 500  # turns; also those whose whole records are read, since the store does not say their arm
NEEDED, BASE_NEEDED = 40, 12  # turns of the newer versions and of the first, before anything is said


def improvement_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["curves"])
    services = context.services

    @router.get("/v1/improvement")
    async def get_improvement(request: Request) -> Response:
        """Return the mean reward of the newest turns less that of the first version, with its 95 % interval.

        `verdict` is `better`, `worse` or `no difference`; `too early` until there are `needed` turns, and `base_needed`
        of the first version, of enough users or sessions; and `first` while that serves. `lately` compares the newest
        turns with the earlier best (`best`) in the same words. The first interval holds
        however often one looks, that of `lately` at a look: its turns are others each time."""
        identity = identity_of(request)
        only_parameters(request)
        live, now = services.policy.live_version, services.clock.now()
        return json_response(await read(services, lambda view: improvement(view, identity.namespace, live, now)))

    return router


def improvement(view: View, namespace: Namespace, live: PolicyRef, now: datetime) -> dict[str, Any]:
    """Return the answer of `GET /v1/improvement`."""
    return {**_since_the_first(view, namespace, live), "lately": lately(view, namespace, now)}


def _since_the_first(view: View, namespace: Namespace, live: PolicyRef) -> dict[str, Any]:
    first = view.policies.first() if view.policies.newest(1) else live
    found = {"object": "improvement", "live": live, "first": first, "needed": NEEDED, "base_needed": BASE_NEEDED}
    if live == first:
        return {**found, "verdict": "first", "how": None}
    recent = view.curves.worth(namespace, RECENT)
    ours = [turn for turn in recent if _is_later(turn, first, live)][:MOST_TURNS]
    held_back = _held_back(view, recent, first)
    if held_back:
        since = min(turn.received_at for turn in held_back)
        ours, base, how = [turn for turn in ours if turn.received_at >= since], held_back, "holdback"
    else:
        oldest = view.curves.oldest(namespace, _OLDEST)
        base, how = [turn for turn in oldest if turn.version == first][:MOST_TURNS], "earlier"
    versions = [turn.version for turn in ours if turn.version is not None]
    span = {"versions": [min(versions), max(versions)] if versions else None}
    return {**found, "how": how, **span, **compared(ours, base, NEEDED, BASE_NEEDED)}


def _is_later(turn: Worth, first: PolicyRef, live: PolicyRef) -> bool:
    """Return whether the turn is of a version after the first, up to the live one: what was taken back is left out."""
    version = turn.version
    return version is not None and version.policy == live.policy and first.version < version.version <= live.version


def _held_back(view: View, recent: Sequence[Worth], first: PolicyRef) -> list[Worth]:
    """Return the newest turns of users who stay on the first version."""
    turns = [turn for turn in recent if turn.version == first]
    untold = [turn.inference_id for turn in turns if turn.arm is None][:_MOST_HELD_BACK]
    arms = view.curves.arms(untold) if untold else {}
    held_back = (turn for turn in turns if (turn.arm or arms.get(turn.inference_id)) == "holdback")
    return list(islice(held_back, _MOST_HELD_BACK))


def compared(ours: Sequence[Worth], base: Sequence[Worth], needed: int, base_needed: int) -> dict[str, Any]:
    """Return the means of both, their difference with its interval, and what may be said of it."""
    found = compare(ours, base) if len(ours) >= needed and len(base) >= base_needed else TOO_EARLY
    return {
        "verdict": found.verdict,
        "turns": len(ours),
        "base_turns": len(base),
        "mean": fmean(turn.value for turn in ours) if ours else None,
        "base_mean": fmean(turn.value for turn in base) if base else None,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
    }
