"""What an operator does next, from what is known of the service: the first thing on the overview.

Each step says what is the matter, what to do, and where: a view of the console, or an order to give there."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from core.operations.alarm_advice import ADVICE
from core.operations.alarms import StoredAlarm
from core.operations.fleet import Experiment
from core.operations.servable import Servable

STUCK_S, STUCK_TURNS = 300.0, 200
"""How long nothing was released, and how many turns were rewarded meanwhile, until that is the matter."""
_FALLS = "worse_than_best"  # the monitor whose alarm says that it has become worse
_ATTACKS: Mapping[str, str] = {
    "reward_mass": "a few users have much of the reward, and so of what is learned",
    "feedback_rate": "one user sends most of the feedback, and so decides much of what is learned",
    "reported_against_verified": "people praise what tests or the build fail",
}
"""The monitors whose alarm says that somebody attacks, and how: what users send, not what the model does."""
_TRENDS: Mapping[str, str] = {
    "falls": "They still fall.",
    "rises": "They rise again.",
    "unclear": "Whether they fall further or rise again cannot be said yet.",
}
_FREEZING = " (the live version stays, and no other goes live until you unfreeze)"
_DIGITS = 8  # of a user's hash, as the console shows it everywhere
_ERRORS, _REQUESTS = 0.05, 20  # the share of the last minute's requests that fail, of so many at least

State = Literal["down", "attacked", "worse", "held", "stuck", "frozen", "better", "no difference", "too early", "first"]
Severity = Literal["critical", "warning", "info"]
_SEVERITIES: Sequence[Severity] = ("critical", "warning", "info")  # the most urgent first


class SuggestedOrder(msgspec.Struct, frozen=True):
    """An order that would help, with the version it is about."""

    kind: Literal["rollback", "pin", "unpin", "unhold"]
    version: int


class NextStep(msgspec.Struct, frozen=True, kw_only=True):
    """`view`: the console's, where more of it stands; `search`: what to search for there, if anything."""

    state: State
    severity: Severity
    what: str
    do: str
    view: str
    search: str = ""
    orders: tuple[SuggestedOrder, ...] = ()


class Loudest(msgspec.Struct, frozen=True):
    """Who has most of the reward where somebody attacks: a user's hash, or a session's id where turns name nobody."""

    kind: Literal["user", "session"]
    name: str
    share: float


class StepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps follow from.

    `improvement`: the answer of `GET /v1/improvement`; `alarms`: those that the caller may see; `is_held`: whether an
    alarm holds releases, seen or not; `loudest`: who has most of the reward, by the id of an alarm that `is_attack` is
    true of; `user_share`: what one user is at most of what is learned, and `learns`: whether there is a learner, by the
    settings; `usual_s`: the median time between the last versions that went live, None where too few did;
    `rewarded_since`: turns rewarded since the last release, up to `STUCK_TURNS`; `canary`: the one that runs; `soon`:
    how soon each version could serve that `named_in` has."""

    improvement: Mapping[str, Any]
    components: Mapping[str, str]
    alarms: Sequence[StoredAlarm]
    is_held: bool
    loudest: Mapping[str, Loudest]
    user_share: float
    learns: bool
    live: int
    pinned: int | None
    held: Sequence[int]
    live_since: datetime | None
    usual_s: float | None
    rewarded_since: int
    newest_reward: datetime | None
    requests: int
    errors: int
    canary: Experiment | None
    soon: Mapping[int, Servable]


def named_in(improvement: Mapping[str, Any], alarms: Sequence[StoredAlarm]) -> frozenset[int]:
    """Return the versions to which one may be told to go back: the first, and whatever did better than others."""
    falls = [_best_under(alarm) for alarm in alarms if alarm.opening.monitor == _FALLS]
    best = improvement["lately"].get("best", {"version": None})["version"]
    named = (improvement["first"].version, None if best is None else best.version, *falls)
    return frozenset(version for version in named if version is not None)


def next_steps(facts: StepFacts) -> list[NextStep]:
    """Return what to do, the most urgent first; at least one step."""
    steps = [*_down(facts), *_attacked(facts), *_fallen(facts), *_alarmed(facts), *_failing(facts), *_stopped(facts)]
    steps.sort(key=lambda step: _SEVERITIES.index(step.severity))
    return steps or [_well(facts)]


def state_of(steps: Sequence[NextStep], verdict: State) -> State:
    """Return the state in one word: of the most urgent step that has one of its own, else the verdict."""
    return next((step.state for step in steps if step.state != verdict), verdict)


def _down(facts: StepFacts) -> Iterator[NextStep]:
    for name, state in facts.components.items():
        is_slow, what = state.startswith("degraded"), state.removeprefix("degraded: ")
        if what not in ("ok", "starting"):
            yield NextStep(
                state=facts.improvement["verdict"] if is_slow else "down",
                severity="warning" if is_slow else "critical",
                what=f"{name}: {state}.",
                do="Read under Health what is behind it; the log of the service has the cause.",
                view="health",
            )


def is_attack(alarm: StoredAlarm) -> bool:
    """Return whether somebody attacks, as an open alarm has it: also once it is acknowledged, until it is closed."""
    return alarm.opening.monitor in _ATTACKS and alarm.state != "closed"


def _alarm(alarm: StoredAlarm) -> str:
    """Return an alarm's name, and of what it is."""
    found = alarm.opening
    return f"{found.monitor.replace('_', ' ')}, {f'workload {found.workload}' if found.workload else 'whole service'}"


def _freezes(facts: StepFacts) -> Literal["attack", "fall"] | None:
    """Return under which matter the order to freeze stands, so that it stands once: the most urgent it helps against.

    None: releases are frozen already, or nothing calls for it."""
    if facts.pinned is not None:
        return None
    attacks = [alarm for alarm in facts.alarms if is_attack(alarm)]
    if any(alarm.state == "opened" for alarm in attacks):
        return "attack"
    return "fall" if any(_falls(facts)) else "attack" if attacks else None


def _attacked(facts: StepFacts) -> Iterator[NextStep]:
    attacks = sorted(filter(is_attack, facts.alarms), key=lambda alarm: alarm.state != "opened")
    may_freeze = _freezes(facts) == "attack"
    for alarm in attacks:
        found, who = alarm.opening, facts.loudest.get(alarm.alarm_id)
        named = "" if who is None else f" {_named(who)} has the most: {who.share:.0%} of the reward there."
        yield NextStep(
            state="attacked",
            severity="info" if alarm.state == "acknowledged" else "critical",
            what=f"Somebody attacks, it seems: {_ATTACKS[found.monitor]} (alarm {_alarm(alarm)}).{named}",
            do=" ".join([_against(alarm, may_freeze=may_freeze), _contained(facts, who), *_done_already(facts, alarm)]),
            view="alarms" if who is None else "sessions",
            search="" if who is None else f"user:{_short(who)}" if who.kind == "user" else who.name,
            orders=(SuggestedOrder("pin", facts.live),) if may_freeze else (),
        )
        may_freeze = False


def _named(who: Loudest) -> str:
    return f"{who.kind.capitalize()} {_short(who)}"


def _short(who: Loudest) -> str:
    return who.name[:_DIGITS] if who.kind == "user" else who.name


def _contained(facts: StepFacts, who: Loudest | None) -> str:
    """Return what bounds the attack without anybody's doing, and what nothing bounds, as far as the settings tell."""
    one = "one user" if who is None else f"this {who.kind}"
    if facts.user_share >= 1:
        return (
            f"Nothing bounds it: {one} teaches as much as they send (learner.users.max_share would bound it), and"
            " their turns count in full in the curves."
        )
    return (
        f"However much they send, {one} is at most {facts.user_share:.0%} of what is learned, or twice an even share"
        " where users are few. Nothing bounds several who send alike; and in the curves and in each version's mean"
        " reward all turns count in full."
    )


def _done_already(facts: StepFacts, alarm: StoredAlarm) -> list[str]:
    told = []
    if facts.pinned is not None:
        told.append(f"Releases are frozen at version {facts.pinned}.")
    elif alarm.holds_releases:
        told.append("Its alarm holds releases, until somebody acknowledges it.")
    if alarm.state == "acknowledged":
        told.append(f"{alarm.acknowledged_by} has acknowledged it.")
    return told


def _against(alarm: StoredAlarm, *, may_freeze: bool) -> str:
    """Return what to do against the attack, in one sentence: first what the order does."""
    advice = ADVICE[alarm.opening.monitor]
    return f"Freeze releases{_FREEZING}, then {advice[0].lower()}{advice[1:]}" if may_freeze else advice


class _Fall(msgspec.Struct, frozen=True, kw_only=True):
    """A fall, as the headline or an alarm sees it. `also`: what is said of it where another sees the same."""

    severity: Severity
    what: str
    also: str
    view: str
    best: int | None


def _fallen(facts: StepFacts) -> Iterator[NextStep]:
    """Yield a step for each version that did better, whoever sees the fall: so no order stands twice."""
    told: defaultdict[int | None, list[_Fall]] = defaultdict(list)
    for fall in sorted(_falls(facts), key=lambda fall: _SEVERITIES.index(fall.severity)):
        told[fall.best].append(fall)
    may_freeze = _freezes(facts) == "fall"
    for best, (first, *others) in told.items():
        orders = _back_to(best, facts, may_freeze=may_freeze)
        yield NextStep(
            state="worse",
            severity=first.severity,
            what=" ".join([first.what, *(fall.also for fall in others)]),
            do=_against_fall(best, facts, orders),
            view=first.view,
            orders=orders,
        )
        may_freeze = False


def _falls(facts: StepFacts) -> Iterator[_Fall]:
    """Yield what has fallen: below the earlier best, as the headline has it, below the first version, and by alarms."""
    lately, found = facts.improvement["lately"], facts.improvement
    best = None
    if lately["verdict"] == "worse":
        best = None if lately["best"]["version"] is None else lately["best"]["version"].version
        what = (
            f"The newest {lately['turns']} turns are rewarded {-lately['difference']:.2f} less than the earlier best"
            f"{_answered_by(best)}. {_TRENDS[lately['trend']]}"
        )
        yield _Fall(severity="critical", what=what, also=what, view="curves", best=best)
    if found["verdict"] == "worse":
        first = found["first"].version
        what = f"Rewards are {-found['difference']:.2f} below those of version {first}, with which it all began."
        yield _Fall(severity="critical", what=what, also=what, view="rewards", best=first)
    for alarm in facts.alarms:
        if alarm.opening.monitor == _FALLS and alarm.state == "opened":
            fall = _fall_under(alarm)
            yield fall if best is None else msgspec.structs.replace(fall, best=best)


def _fall_under(alarm: StoredAlarm) -> _Fall:
    """Return what the alarm of the monitor that sees a fall says, out of its figures."""
    found, best = alarm.opening, _best_under(alarm)
    by = found.figures["reference"] - found.figures["recent"]
    return _Fall(
        severity=found.severity,
        what=f"Alarm {_alarm(alarm)}: the same users' turns are rewarded {by:.2f} less than the earlier best"
        f"{_answered_by(best)}.",
        also=f"Alarm {_alarm(alarm)}, says so, too: by {by:.2f}, of the same users.",
        view="alarms",
        best=best,
    )


def _best_under(alarm: StoredAlarm) -> int | None:
    figures = alarm.opening.figures
    return int(figures["best_version"]) if "best_version" in figures else None


def _answered_by(best: int | None) -> str:
    return "" if best is None else f", when mostly version {best} answered"


def _back_to(best: int | None, facts: StepFacts, *, may_freeze: bool) -> tuple[SuggestedOrder, ...]:
    """Return the orders that help against a fall: one back to the best version, where that is another, and a freeze."""
    stays = best is None or best == facts.live or _is_lost(best, facts)
    back = () if best is None or stays else (SuggestedOrder("rollback", best),)
    return (*back, SuggestedOrder("pin", facts.live)) if may_freeze else back


def _is_lost(version: int, facts: StepFacts) -> bool:
    return version in facts.soon and facts.soon[version].servable == "lost"


def _against_fall(best: int | None, facts: StepFacts, orders: Sequence[SuggestedOrder]) -> str:
    """Return what to do against a fall: first what the first of the orders does."""
    freezes = any(order.kind == "pin" for order in orders)
    if any(order.kind == "rollback" for order in orders):
        meanwhile = f"; freeze releases while you look{_FREEZING}" * freezes
        return f"Go back to version {best}, if nothing else has changed{meanwhile}."
    if best == facts.live:
        stays = f"freeze releases{_FREEZING}, and " * freezes
        return f"Version {best}, which did better, serves already: {stays}see whether its next turns do better."
    gone = f"Version {best}, which did better, cannot serve any more. " * (best is not None and _is_lost(best, facts))
    return gone + (f"Freeze releases{_FREEZING}, and see what has changed." if freezes else "See what has changed.")


def _alarmed(facts: StepFacts) -> Iterator[NextStep]:
    for alarm in facts.alarms:
        if alarm.state != "opened" or alarm.opening.monitor == _FALLS or is_attack(alarm):
            continue
        found = alarm.opening
        holds = " It holds releases until it is acknowledged, under Alarms." if alarm.holds_releases else ""
        yield NextStep(
            state="held" if alarm.holds_releases else facts.improvement["verdict"],
            severity=found.severity,
            what=f"Alarm {_alarm(alarm)}: {found.meaning}{holds}",
            do=ADVICE.get(found.monitor, "Look at its figures."),
            view="alarms",
        )

    if facts.is_held and not any(alarm.holds_releases for alarm in facts.alarms):
        yield NextStep(
            state="held",
            severity="warning",
            what="An alarm of another namespace holds releases.",
            do="Ask whoever has a key with the scope admin to look at it.",
            view="releases",
        )


def _failing(facts: StepFacts) -> Iterator[NextStep]:
    if facts.requests >= _REQUESTS and facts.errors > _ERRORS * facts.requests:
        yield NextStep(
            state="down",
            severity="warning",
            what=f"{facts.errors} of the last minute's {facts.requests} requests were answered with an error.",
            do="See which client sends them, and what they are refused for.",
            view="clients",
        )


def _stopped(facts: StepFacts) -> Iterator[NextStep]:
    if facts.pinned is not None:
        yield NextStep(
            state="frozen",
            severity="info",
            what=f"Releases are frozen: version {facts.pinned} is pinned.",
            do="Unpin it once later versions may serve.",
            view="releases",
            orders=(SuggestedOrder("unpin", facts.pinned),),
        )
        return
    for version in facts.held:
        yield NextStep(
            state="held",
            severity="info",
            what=f"Version {version} is held by an order.",
            do="Let it go on, or roll it back.",
            view="releases",
            orders=(SuggestedOrder("unhold", version),),
        )
    waits = _waits_for_users(facts)
    if waits is not None:
        yield waits
    if waits is not None or facts.is_held or facts.live_since is None or facts.newest_reward is None:
        return
    waited_s = (facts.newest_reward - facts.live_since).total_seconds()
    if waited_s < STUCK_S or facts.rewarded_since < STUCK_TURNS:
        return
    if facts.learns:
        yield NextStep(
            state="stuck",
            severity="warning",
            what=f"Nothing was released for {_about(waited_s)}, although turns were rewarded all the"
            f" time{_usual(facts)}.",
            do="See under Health whether learner and releases work; if they do, under Releases whether versions were"
            " refused, and why.",
            view="health",
        )
    else:
        yield NextStep(
            state=facts.improvement["verdict"],
            severity="info",
            what="The learner is turned off: rewards come, and no version is made of them.",
            do="Turn it on (learner.enabled), if it should learn.",
            view="health",
        )


def _waits_for_users(facts: StepFacts) -> NextStep | None:
    """Return what is said of a canary of which too few users, or of the version beside it, have said anything."""
    running = facts.canary
    if running is None or "needed_users" not in running.figures:
        return None
    here, there, needed = (running.figures[name] for name in ("users", "control_users", "needed_users"))
    if min(here, there) >= needed:
        return None
    until = "" if running.until is None else f": at {running.until:%Y-%m-%d %H:%M} UTC at the latest it is decided"
    return NextStep(
        state=facts.improvement["verdict"],
        severity="info",
        what=f"Canary {running.canary} waits for users: it was judged by {here:.0f} of {needed:.0f}, version"
        f" {running.control} by {there:.0f} of {needed:.0f}.",
        do=f"Wait{until}. To end it now, promote it under Releases, or roll back to version {running.control}; with a"
        " larger release.canary.share the next one has its users sooner.",
        view="releases",
    )


def _usual(facts: StepFacts) -> str:
    return "" if facts.usual_s is None else f": usually a version goes live every {_about(facts.usual_s)}"


def _about(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _well(facts: StepFacts) -> NextStep:
    found, verdict = facts.improvement, facts.improvement["verdict"]
    if verdict == "first":
        what, do = "The first version serves, as it was given.", "Send feedback: later versions learn from it."
    elif verdict == "too early":
        what, do = (
            "It is too early to say whether it has become better.",
            "Let it run, and look at the rewards that come.",
        )
    elif verdict == "better":
        what = f"Rewards are {found['difference']:.2f} above those of version {found['first'].version}."
        do = "Nothing needs to be done."
    else:
        what = "No difference from the first version is shown so far."
        do = "Let it run; a holdback of some users shows smaller differences."
    return NextStep(
        state=verdict, severity="info", what=what, do=do, view="curves" if verdict != "first" else "rewards"
    )
