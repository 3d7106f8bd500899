"""The routes `/v1/curves` and `/v1/behaviour`: how the model does, over time and by version.

They look at the newest turns only, so that a request costs the same however much is stored."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters, whole_number
from api.operator.figures.intervals import Estimate, estimate, quantile
from api.turns.lookup import read
from core.ids import Namespace, PolicyRef
from core.operations.fleet import Experiment
from core.reward_spec import DerivedSpec, call_line
from core.store.newest.curves import Conduct, Worth
from core.store.work import View
from core.text.patterns import Pattern, pattern

_TURNS, _MOST_TURNS = 3000, 10_000
_ACTIONS, _MOST_ACTIONS = 300, 1000  # turns whose whole records are read
_POINTS = 60  # of a curve over time
_STRETCHES = 10  # of all turns: over one of them a smoothed curve takes its mean
_LEAST_SMOOTHED = 30  # turns
_VERSIONS = 200
_RELEASES = 2000


def curves_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["curves"])
    services = context.services

    @router.get("/v1/curves")
    async def get_curves(request: Request) -> Response:
        """Return curves over the newest `turns` revisions of rewards.

        They are the worth over time (each point the mean of as many turns), the worth and its parts by version and
        arm, and how long feedback took to be served, by version."""
        identity = identity_of(request)
        only_parameters(request, "turns", "workload")
        limit = whole_number(request, "turns", _TURNS, _MOST_TURNS, least=1)
        workload = request.query_params.get("workload")
        return json_response(
            await read(services, lambda view: _curves(view, services.cluster, identity.namespace, limit, workload))
        )

    @router.get("/v1/behaviour")
    async def get_behaviour(request: Request) -> Response:
        """Return, by version, what the newest `turns` that have a reward did.

        This is the share that searched, edited and ran tests, as the reward spec's patterns know such calls, and the
        tokens and seconds of a turn."""
        identity = identity_of(request)
        only_parameters(request, "turns", "workload")
        limit = whole_number(request, "turns", _ACTIONS, _MOST_ACTIONS, least=1)
        workload = request.query_params.get("workload")
        found = await read(services, lambda view: view.curves.conduct(identity.namespace, limit))
        turns = [turn for turn in found if workload in (None, turn.workload)]
        data = _behaviour(turns, services.spec.derived)
        return json_response({"object": "behaviour", "turns": len(turns), "versions": data})

    return router


def _curves(view: View, cluster: str, namespace: Namespace, limit: int, workload: str | None) -> dict[str, Any]:
    found = view.curves.worth(namespace, limit)
    turns = [turn for turn in found if workload in (None, turn.workload)]
    return {
        "object": "curves",
        "turns": len(turns),
        "workloads": sorted({turn.workload for turn in found}),
        "quality": _quality(turns[::-1]),
        "versions": _by_version(turns, view.experiments.newest(cluster, _VERSIONS)),
        "latency": _latency(view),
    }


def _quality(turns: Sequence[Worth]) -> list[dict[str, Any]]:
    """Return the worth over time of `turns`, which are in order with the oldest first.

    `smooth` is the mean over a longer stretch that ends there, and, once that has enough turns, the band that it lies
    in with 95 %."""
    size = max(1, math.ceil(len(turns) / _POINTS))
    stretch = max(size, _LEAST_SMOOTHED, len(turns) // _STRETCHES)
    points = []
    for start in range(0, len(turns), size):
        end = min(start + size, len(turns))
        smooth = _smooth(turns[max(0, end - stretch) : end])
        points.append({"at": turns[end - 1].decided_at, **_worth(turns[start:end]), "smooth": smooth})
    return points


def _smooth(turns: Sequence[Worth]) -> dict[str, Any]:
    has_band = len(turns) >= _LEAST_SMOOTHED
    value = estimate((turn.session_id, turn.value) for turn in turns)
    good = estimate((turn.session_id, float(turn.value > 0)) for turn in turns)
    return {"turns": len(turns), **_band("mean", value, has_band), **_band("good", good, has_band)}


def _band(name: str, found: Estimate, is_shown: bool) -> dict[str, float | None]:
    low, high = (found.low, found.high) if is_shown else (None, None)
    return {name: found.mean, f"{name}_low": low, f"{name}_high": high}


def _by_version(turns: Iterable[Worth], experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    groups: dict[tuple[PolicyRef, str], list[Worth]] = defaultdict(list)
    for turn in turns:
        if turn.version is not None:
            groups[turn.version, _arm(turn, experiments)].append(turn)
    return [
        {"version": version, "arm": arm, **_worth(group), **_interval(group), "components": _components(group)}
        for (version, arm), group in sorted(groups.items())
    ]


def _arm(turn: Worth, experiments: Iterable[Experiment]) -> str:
    """Return the arm that served a turn.

    Where the store does not say, it is canary if its version was one when the request arrived, else live."""
    if turn.arm is not None:
        return turn.arm
    for experiment in experiments:
        ended = experiment.ended_at
        within = experiment.started_at <= turn.received_at and (ended is None or turn.received_at < ended)
        if within and turn.version in experiment.versions:
            return "canary"
    return "live"


def _worth(turns: Sequence[Worth]) -> dict[str, Any]:
    """Return the mean worth of the turns, and as `good` the share that is worth more than 0."""
    return {
        "turns": len(turns),
        "mean": fmean(turn.value for turn in turns),
        "good": fmean(turn.value > 0 for turn in turns),
    }


def _interval(turns: Sequence[Worth]) -> dict[str, float | None]:
    """Return where the mean worth lies with 95 %; None where one session alone spoke."""
    found = estimate((turn.session_id, turn.value) for turn in turns)
    return {"low": found.low, "high": found.high}


def _components(turns: Sequence[Worth]) -> dict[str, float]:
    """Return what each component adds to the mean: in a turn without it, it counts as 0."""
    sums: dict[str, float] = defaultdict(float)
    for turn in turns:
        for name, value in turn.components.items():
            sums[name] += value
    return {name: total / len(turns) for name, total in sorted(sums.items())}


def _latency(view: View) -> list[dict[str, Any]]:
    """Return, for each version, the time from the outcomes that it learned from to its release."""
    live = view.curves.live_since(view.releases.last_sequence() - _RELEASES)
    found = []
    for policy, _ in reversed(view.policies.newest(_VERSIONS)):
        since = live.get(policy.version)
        if since is not None and policy.outcome_arrivals:
            waits_s = sorted((since - arrival).total_seconds() for arrival in policy.outcome_arrivals)
            figures = {"p50_s": quantile(waits_s, 0.5), "p99_s": quantile(waits_s, 0.99)}
            found.append({"version": policy.version, "live_at": since, "turns": len(waits_s), **figures})
    return found


def _behaviour(turns: Iterable[Conduct], spec: DerivedSpec) -> list[dict[str, Any]]:
    groups: dict[PolicyRef, list[Conduct]] = defaultdict(list)
    for turn in turns:
        if turn.policy_versions and turn.token_ids:  # a turn without tokens was not stored
            groups[turn.policy_versions[-1].version].append(turn)
    kinds = {"searches": spec.searches, "edits": spec.edits, "tests": spec.tests}
    patterns = {name: pattern(searched) for name, searched in kinds.items()}
    return [{"version": version, **_conduct(group, patterns)} for version, group in sorted(groups.items())]


def _conduct(turns: Sequence[Conduct], patterns: dict[str, Pattern]) -> dict[str, Any]:
    lines = [[call_line(call.name, call.arguments) for call in turn.tool_calls] for turn in turns]
    shares = {name: fmean(any(map(kind.is_in, calls)) for calls in lines) for name, kind in patterns.items()}
    return {
        "turns": len(turns),
        **shares,
        "tokens": fmean(len(turn.token_ids) for turn in turns),
        "seconds": fmean(turn.latency_ms for turn in turns) / 1000,
    }
