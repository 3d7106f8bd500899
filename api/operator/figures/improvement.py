"""The route `GET /v1/improvement`: whether the model is better than the one it began as, and how sure that is.

Where a holdback runs, its users' turns are what the first version does at the same time; else the oldest rewards that
are kept are what it did then, and users may have changed since."""

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from api.access.context import Context
from api.access.own_policy import own_policy
from api.access.plain import identity_of, json_response, only_parameters
from api.operator.figures.intervals import Estimate, estimate
from api.turns.lookup import read
from core.ids import Namespace, PolicyRef
from core.store.newest.curves import Worth
from core.store.work import View

RECENT = 5000  # revisions of rewards that are looked at
_OLDEST = 1000  # of them, for the first version where no holdback runs
_MOST = 1000  # turns of either side
_MOST_HELD_BACK = 500  # turns whose whole records are read
NEEDED, BASE_NEEDED = 200, 50  # turns of the newer versions and of the first, before anything is said

Verdict = Literal["better", "worse", "no difference", "too early", "first"]


def improvement_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["curves"])
    services = context.services

    @router.get("/v1/improvement")
    async def get_improvement(request: Request) -> Response:
        """Return the mean reward of the newest turns less that of the first version, with its 95 % interval.

        `verdict` is `too early` until there are `needed` turns, and `base_needed` of the first version, which may have
        served fewer; and `first` while that serves."""
        identity = identity_of(request)
        only_parameters(request)
        live = services.policy.live_of(own_policy(services, identity))
        return json_response(await read(services, lambda view: _improvement(view, identity.namespace, live)))

    return router


def _improvement(view: View, namespace: Namespace, live: PolicyRef) -> dict[str, Any]:
    first = view.policies.first(live.policy) if view.policies.newest(1, live.policy) else live
    found = {"object": "improvement", "live": live, "first": first, "needed": NEEDED, "base_needed": BASE_NEEDED}
    if live == first:
        return {**found, "verdict": "first", "how": None}
    recent = view.curves.worth(namespace, RECENT)
    ours = [turn for turn in recent if _is_later(turn, first, live)][:_MOST]
    held_back = _held_back(view, recent, first)
    if held_back:
        since = min(turn.received_at for turn in held_back)
        ours, base, how = [turn for turn in ours if turn.received_at >= since], held_back, "holdback"
    else:
        oldest = view.curves.oldest(namespace, _OLDEST)
        base, how = [turn for turn in oldest if turn.version == first][:_MOST], "earlier"
    versions = [turn.version for turn in ours if turn.version is not None]
    span = {"versions": [min(versions), max(versions)] if versions else None}
    return {**found, "how": how, **span, **compared(ours, base, NEEDED, BASE_NEEDED)}


def _is_later(turn: Worth, first: PolicyRef, live: PolicyRef) -> bool:
    """Return whether the turn is of a version after the first, up to the live one: what was taken back is left out."""
    version = turn.version
    return version is not None and version.policy == live.policy and first.version < version.version <= live.version


def _held_back(view: View, recent: Sequence[Worth], first: PolicyRef) -> list[Worth]:
    """Return the newest turns of users who stay on the first version."""
    turns = [turn for turn in recent if turn.version == first][:_MOST_HELD_BACK]
    arms = view.curves.arms(turn.inference_id for turn in turns)
    return [turn for turn in turns if arms.get(turn.inference_id) == "holdback"]


def compared(ours: Sequence[Worth], base: Sequence[Worth], needed: int, base_needed: int) -> dict[str, Any]:
    """Return the means of both, their difference with its interval, and what may be said of it."""
    one, other = _estimate(ours), _estimate(base)
    counts = {"turns": len(ours), "base_turns": len(base)}
    means = {"mean": one and one.mean, "base_mean": other and other.mean}
    if one is None or other is None or len(ours) < needed or len(base) < base_needed:
        return {"verdict": "too early", **counts, **means, "difference": None, "low": None, "high": None}
    gain = one - other
    verdict = _verdict(gain)
    return {"verdict": verdict, **counts, **means, "difference": gain.mean, "low": gain.low, "high": gain.high}


def _estimate(turns: Sequence[Worth]) -> Estimate | None:
    return estimate((turn.session_id, turn.value) for turn in turns) if turns else None


def _verdict(gain: Estimate) -> Verdict:
    if gain.low is None or gain.high is None:
        return "too early"
    return "better" if gain.low > 0 else "worse" if gain.high < 0 else "no difference"
