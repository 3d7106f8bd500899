"""A run as an operator saw it, beside what it truly was: windows, alarms, and what the releases did."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from simulator.drive import Driver
from simulator.outcome.truth import Lived, Truth, quality
from simulator.service import ServiceView


async def aftermath(driver: Driver, service: ServiceView) -> dict[str, Any]:
    """Return the run's alarms and releases, with moments in seconds since the first arrival.

    Raises what ServiceView does."""
    exploit, start = driver.traffic.exploit, driver.started_at
    alarms = [_alarm(alarm, start) for alarm in reversed(await service.alarms())]
    seen = [alarm["opened_s"] for alarm in alarms if alarm["monitor"] in exploit.monitors]
    releases = await service.releases()
    return {
        "alarms": alarms,
        "seen_after_s": min(seen, default=None),
        "releases": dict(Counter(release["state"] for release in releases)),
        "rolled_back": [_step(release, start) for release in releases if release["state"] == "rolled_back"],
    }


def windows(truth: Truth, end_s: float) -> Iterator[dict[str, Any]]:
    """Yield the figures of one window after the other; the last one may be shorter.

    `unreported` is the share of sessions for which no feedback was sent."""
    start_s = 0.0
    while start_s < end_s:
        until_s = min(start_s + truth.window_s, end_s)
        lived = [one for one in truth.judged if start_s <= one.started_s < until_s]
        yield {
            "from_s": start_s,
            "to_s": until_s,
            "sessions": len(lived),
            "true": quality(lived),
            "apparent": apparent(lived),
            "unreported": sum(not one.words for one in lived) / len(lived) if lived else None,
            "endings": dict(Counter(one.session.ending for one in lived)),
        }
        start_s = until_s


def apparent(lived: list[Lived]) -> float | None:
    """Return the share accepted among the sessions that the client counts."""
    counted = [one.reported for one in lived if one.reported is not None]
    return sum(name == "accepted" for name in counted) / len(counted) if counted else None


def by_user_kind(truth: Truth) -> dict[str, dict[str, int]]:
    """Return, for each kind of user, the number of sessions and of pieces of feedback."""
    sessions = Counter[str](lived.user_kind for lived in truth.lived)
    return {
        kind: {"sessions": count, "words": sum(one.words for one in truth.lived if one.user_kind == kind)}
        for kind, count in sorted(sessions.items())
    }


def _alarm(alarm: dict[str, Any], start: datetime) -> dict[str, Any]:
    kept = ("monitor", "severity", "workload", "state", "figures")
    return {"opened_s": _seconds(alarm["opened_at"], start), **{name: alarm[name] for name in kept}}


def _step(release: dict[str, Any], start: datetime) -> dict[str, Any]:
    return {"at_s": _seconds(release["at"], start), **{name: release[name] for name in ("version", "why", "by")}}


def _seconds(moment: str, start: datetime) -> float:
    return round((datetime.fromisoformat(moment) - start).total_seconds(), 1)
