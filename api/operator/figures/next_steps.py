"""What an operator does next, from what is known of the service: the first thing on the overview.

Each step says what is the matter, what to do, and where: a view of the console, or an order to give there."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from core.operations.alarm_advice import ADVICE
from core.operations.alarms import StoredAlarm

STUCK_S, STUCK_TURNS = 300.0, 200
"""How long nothing was released, and how many turns were rewarded meanwhile, until that is the matter."""
_FALLS = "worse_than_best"  # the monitor whose alarm says that it has become worse
_ATTACKS: Mapping[str, str] = {
    "reward_mass": "A few users have much of the reward",
    "feedback_rate": "One user sends most of the feedback",
    "reported_against_verified": "People praise what tests or the build fail",
}
"""The monitors whose alarm says that somebody attacks, and how: what users send, not what the model does."""
_BACK = "Freeze releases while you look; if nothing else has changed, go back to what was better."
_ERRORS, _REQUESTS = 0.05, 20  # the share of the last minute's requests that fail, of so many at least

State = Literal["down", "attacked", "worse", "held", "stuck", "frozen", "better", "no difference", "too early", "first"]
Severity = Literal["critical", "warning", "info"]


class Order(msgspec.Struct, frozen=True):
    """An order that would help, with the version it is about."""

    kind: Literal["rollback", "pin", "unpin", "unhold"]
    version: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    severity: Severity
    what: str
    do: str
    view: str
    orders: tuple[Order, ...] = ()


class Loudest(msgspec.Struct, frozen=True):
    """Who has most of the reward where somebody attacks: a user's hash, or a session's id where turns name nobody."""

    kind: Literal["user", "session"]
    name: str
    share: float


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps follow from.

    `improvement`: the answer of `GET /v1/improvement`; `alarms`: those that the caller may see; `is_held`: whether an
    alarm holds releases, seen or not; `loudest`: who has most of the reward, by the id of an alarm that `is_attack` is
    true of; `user_share`: what one user is at most of what is learned, and `learns`: whether there is a learner, by the
    settings; `rewarded_since`: turns rewarded since the last release, up to `STUCK_TURNS`."""

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
    rewarded_since: int
    newest_reward: datetime | None
    requests: int
    errors: int


def next_steps(facts: Facts) -> list[Step]:
    """Return what to do, the most urgent first; at least one step."""
    steps = [*_down(facts), *_attacked(facts), *_fallen(facts), *_alarmed(facts), *_failing(facts), *_stopped(facts)]
    steps.sort(key=lambda step: ("critical", "warning", "info").index(step.severity))
    return steps or [_well(facts)]


def state_of(steps: Sequence[Step], verdict: State) -> State:
    """Return the state in one word: of the most urgent step that has one of its own, else the verdict."""
    return next((step.state for step in steps if step.state != verdict), verdict)


def _down(facts: Facts) -> Iterator[Step]:
    for name, state in facts.components.items():
        is_slow, what = state.startswith("degraded"), state.removeprefix("degraded: ")
        if what not in ("ok", "starting"):
            yield Step(
                state=facts.improvement["verdict"] if is_slow else "down",
                severity="warning" if is_slow else "critical",
                what=f"{name}: {state}.",
                do="Read under Health what is behind it; the log of the service has the cause.",
                view="health",
            )


def is_attack(alarm: StoredAlarm) -> bool:
    """Return whether somebody attacks, as an open alarm has it: also once it is acknowledged, until it is closed."""
    return alarm.opening.monitor in _ATTACKS and alarm.state != "closed"


def _attacked(facts: Facts) -> Iterator[Step]:
    for alarm in facts.alarms:
        if not is_attack(alarm):
            continue
        found, is_known = alarm.opening, alarm.state == "acknowledged"
        who = facts.loudest.get(alarm.alarm_id)
        named = "" if who is None else f" Most has {who.kind} {who.name}: {who.share:.0%}."
        yield Step(
            state="attacked",
            severity="info" if is_known else "critical",
            what=f"Somebody attacks, in workload {found.workload or 'service'}: {_ATTACKS[found.monitor]}.{named}",
            do=f"{_done_already(facts, alarm)} {_against(facts, alarm, who)}",
            view="alarms" if who is None else "sessions",
            orders=() if facts.pinned is not None else (Order("pin", facts.live),),
        )


def _searched(who: Loudest) -> str:
    return f"user:{who.name}" if who.kind == "user" else who.name


def _done_already(facts: Facts, alarm: StoredAlarm) -> str:
    """Return what bounds the attack without anybody's doing, and what was done about it."""
    told = [
        f"Already, one user is at most {facts.user_share:.0%} of what is learned, or twice an even share"
        if facts.user_share < 1
        else "Nothing bounds yet how much one user teaches (learner.users.max_share)"
    ]
    if facts.pinned is not None:
        told.append(f"releases are frozen at version {facts.pinned}")
    elif alarm.holds_releases:
        told.append("releases are held by its alarm, until that is acknowledged")
    if alarm.state == "acknowledged":
        told.append(f"{alarm.acknowledged_by} has acknowledged it")
    return "; ".join(told) + "."


def _against(facts: Facts, alarm: StoredAlarm, who: Loudest | None) -> str:
    """Return what to do against the attack, in one sentence."""
    first = [] if facts.pinned is not None else ["freeze releases"]
    if who is not None:
        first.append(f"search sessions for {_searched(who)}")
    advice = ADVICE[alarm.opening.monitor]
    told = f"{', '.join(first)} and {advice[0].lower()}{advice[1:]}" if first else advice
    return told[0].upper() + told[1:]


def _fallen(facts: Facts) -> Iterator[Step]:
    lately, found = facts.improvement["lately"], facts.improvement
    if lately["verdict"] == "worse":
        best = None if lately["best"]["version"] is None else lately["best"]["version"].version
        yield Step(
            state="worse",
            severity="critical",
            what=f"The newest {lately['turns']} turns are rewarded {-lately['difference']:.2f} less than the best "
            f"before them{_answered_by(best)}.",
            do=_BACK,
            view="curves",
            orders=_back_to(best, facts),
        )
    if found["verdict"] == "worse":
        first = found["first"].version
        yield Step(
            state="worse",
            severity="critical",
            what=f"Rewards are {-found['difference']:.2f} below those of version {first}, with which it all began.",
            do="Go back to it, and look at what the learner learns from.",
            view="rewards",
            orders=_back_to(first, facts),
        )


def _answered_by(best: int | None) -> str:
    return "" if best is None else f", most of which version {best} answered"


def _back_to(best: int | None, facts: Facts) -> tuple[Order, ...]:
    """Return the orders that help against a fall: one back to the best version, where that is another, and a freeze."""
    back = () if best is None or best == facts.live else (Order("rollback", best),)
    return back if facts.pinned is not None else (*back, Order("pin", facts.live))


def _fallen_under(alarm: StoredAlarm, facts: Facts) -> Step:
    """Return what to do about the alarm of the monitor that sees a fall, out of its figures."""
    found = alarm.opening
    best = int(found.figures["best_version"]) if "best_version" in found.figures else None
    by = found.figures["reference"] - found.figures["recent"]
    return Step(
        state="worse",
        severity=found.severity,
        what=f"Alarm, workload {found.workload or 'service'}: the same users' turns are rewarded {by:.2f} less than "
        f"the best before them{_answered_by(best)}.",
        do=_BACK,
        view="alarms",
        orders=_back_to(best, facts),
    )


def _alarmed(facts: Facts) -> Iterator[Step]:
    for alarm in facts.alarms:
        if alarm.state != "opened" or is_attack(alarm):
            continue
        found = alarm.opening
        if found.monitor == _FALLS:
            yield _fallen_under(alarm, facts)
            continue
        holds = " It holds releases until it is acknowledged, under Alarms." if alarm.holds_releases else ""
        yield Step(
            state="held" if alarm.holds_releases else facts.improvement["verdict"],
            severity=found.severity,
            what=f"Alarm {found.monitor.replace('_', ' ')}, {found.workload or 'service'}: {found.meaning}{holds}",
            do=ADVICE.get(found.monitor, "Look at its figures."),
            view="alarms",
        )

    if facts.is_held and not any(alarm.holds_releases for alarm in facts.alarms):
        yield Step(
            state="held",
            severity="warning",
            what="An alarm of another namespace holds releases.",
            do="Ask whoever has a key with the scope admin to look at it.",
            view="releases",
        )


def _failing(facts: Facts) -> Iterator[Step]:
    if facts.requests >= _REQUESTS and facts.errors > _ERRORS * facts.requests:
        yield Step(
            state="down",
            severity="warning",
            what=f"{facts.errors} of the last minute's {facts.requests} requests were answered with an error.",
            do="See which client sends them, and what they are refused for.",
            view="clients",
        )


def _stopped(facts: Facts) -> Iterator[Step]:
    if facts.pinned is not None:
        yield Step(
            state="frozen",
            severity="info",
            what=f"Releases are frozen: version {facts.pinned} is pinned.",
            do="Unpin it once later versions may serve.",
            view="releases",
            orders=(Order("unpin", facts.pinned),),
        )
        return
    for version in facts.held:
        yield Step(
            state="held",
            severity="info",
            what=f"Version {version} is held by an order.",
            do="Let it go on, or roll it back.",
            view="releases",
            orders=(Order("unhold", version),),
        )
    if facts.is_held or facts.live_since is None or facts.newest_reward is None:
        return
    waited_s = (facts.newest_reward - facts.live_since).total_seconds()
    if waited_s < STUCK_S or facts.rewarded_since < STUCK_TURNS:
        return
    if facts.learns:
        yield Step(
            state="stuck",
            severity="warning",
            what=f"Nothing was released for {waited_s / 60:.0f} minutes, although turns were rewarded all the time.",
            do="See under Health whether learner and releases work, and under Releases why versions were refused.",
            view="health",
        )
    else:
        yield Step(
            state=facts.improvement["verdict"],
            severity="info",
            what="The learner is turned off: rewards come, and no version is made of them.",
            do="Turn it on (learner.enabled), if it should learn.",
            view="health",
        )


def _well(facts: Facts) -> Step:
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
    return Step(state=verdict, severity="info", what=what, do=do, view="curves" if verdict != "first" else "rewards")
