"""The report on a finished run: whether all that was acknowledged is there, and whether the model became better."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.provenance import Origin, lowest_and_highest, provenance
from simulator.aftermath import aftermath, by_user_kind, windows
from simulator.drive import Driver
from simulator.losses import find_losses
from simulator.outcome.curves import RunCurves, draw
from simulator.outcome.truth import Truth, rates
from simulator.service import UNREACHABLE, ServiceView

RISE = 0.20
RECOVERED_SHARE = 0.9
SETTLE_S = 30.0
AFTERMATH = ("alarms", "seen_after_s", "releases", "rolled_back")
SERVED = ("live", "retired", "rolled_back")


async def make_report(driver: Driver, service: ServiceView, made: Origin) -> dict[str, Any]:
    """Return the figures of the run; None stands for those that nobody could give. `made`: by which command."""
    truth, traffic = driver.truth, driver.traffic
    losses = await find_losses(truth, service, SETTLE_S)
    metrics: dict[str, float] = {}
    policies: list[dict[str, Any]] = []
    seen: dict[str, Any] = {}
    try:
        metrics, policies = await service.metrics(), await service.policies()
        seen = await aftermath(driver, service)
    except UNREACHABLE as error:
        truth.failures.append(f"the service's metrics, policies, alarms or releases cannot be read: {error!r}")
    latencies = sorted(s for lived in truth.lived for s in lived.session.latencies_s)
    end_s = traffic.seconds
    rewarded = metrics.get('onward_rewards_total{kind="first"}', 0.0)
    answered = (version for lived in truth.lived for version in lived.session.versions)
    report = {
        "provenance": origin(made, policies, answered, traffic.seed),
        "seed": traffic.seed,
        "seconds": traffic.seconds,
        "rate": traffic.rate,
        "quality_start": truth.quality_start(),
        "quality_at_90_s": truth.quality_at(90.0),
        "quality_at_150_s": truth.quality_at(150.0),
        "quality_end": truth.quality_at(end_s),
        "quality_rise": truth.rise(end_s),
        "reported_accept_end": truth.accepted_share(end_s),
        "feedback_to_served_p50_s": metrics.get('onward_feedback_to_served_quantile_seconds{quantile="0.5"}'),
        "feedback_to_served_p99_s": metrics.get('onward_feedback_to_served_quantile_seconds{quantile="0.99"}'),
        "versions": len(policies),
        "swaps": sum(policy["state"] in SERVED for policy in policies) - 1 if policies else None,
        "sessions": len(truth.lived),
        "turns": sum(len(lived.session.inference_ids) for lived in truth.lived),
        "turn_p50_s": latencies[len(latencies) // 2] if latencies else None,
        "turn_p99_s": latencies[int(len(latencies) * 0.99)] if latencies else None,
        "failed_requests": len(truth.failures),
        "turned_away": truth.turned_away,
        "endings": dict(Counter(lived.session.ending for lived in truth.lived)),
        "rates_start": rates(truth.untaught()),
        "rates_end": rates(truth.before(end_s)),
        "lost_turns": losses.turns,
        "lost_outcomes": losses.outcomes,
        "engine_idle_share": idle_share(metrics, end_s),
        "learner_idle_share": waiting_share(policies),
        "probe_share": probe_share(metrics, end_s),
        "learner": policies[0]["metrics"] if policies else None,
        "updates": [{"version": each["version"], **each["metrics"]} for each in reversed(policies) if each["metrics"]],
        "share_learned_from": sum(policy["turns"] for policy in policies) / rewarded if rewarded else None,
        "failures": truth.failures[:10],
        "exploit": traffic.exploit.name,
        "crowd": asdict(traffic.crowd),
        "users": by_user_kind(truth),
        "silenced": truth.silenced,
        "windows": list(windows(truth, end_s)),
        **(dict.fromkeys(AFTERMATH) | seen),
    }
    if traffic.shift_at_s is not None:
        report |= after_shift(truth, traffic.shift_at_s, end_s)
    return report


def origin(made: Origin, policies: Sequence[Mapping[str, Any]], answered: Iterable[int], seed: int) -> dict[str, Any]:
    """Return where a report comes from.

    `policies`: as the service lists them, the newest first. Where the page does not reach back to the first version,
    nobody says of which model they are."""
    first: Mapping[str, Any] = next((each for each in policies[-1:] if each["parent"] is None), {})
    return provenance(made, first.get("policy"), first.get("digest"), lowest_and_highest(answered), {"users": seed})


def after_shift(truth: Truth, shift_at_s: float, end_s: float) -> dict[str, float | None]:
    """Return how far quality recovered after the shift.

    `recovered_after_s` is when a whole window after the shift first reached nine tenths of the level before it."""
    before = truth.quality_at(shift_at_s, longest=1.0)
    whole_s = shift_at_s + truth.window_s
    moments = [whole_s + step for step in range(int(end_s - whole_s) + 1)]
    levels = [(moment, level) for moment in moments if (level := truth.quality_at(moment, longest=1.0)) is not None]
    best = max((level for _, level in levels), default=None)
    recovered = [moment for moment, level in levels if before is not None and level >= RECOVERED_SHARE * before]
    return {
        "quality_before_shift": before,
        "quality_after_shift": truth.quality_at(whole_s, longest=1.0),
        "recovered_after_s": recovered[0] - shift_at_s if recovered else None,
        "recovered_share": best / before if best is not None and before else None,
    }


def idle_share(metrics: Mapping[str, float], seconds: float) -> float | None:
    """Return the share of the run in which no engine worked."""
    busy_s = metrics.get("onward_engine_busy_seconds_total")
    return None if busy_s is None else max(0.0, 1 - busy_s / seconds)


def probe_share(metrics: Mapping[str, float], seconds: float) -> float | None:
    """Return the share of the run in which the service probed a candidate."""
    probed_s = metrics.get("onward_probe_seconds_total")
    return None if probed_s is None else probed_s / seconds


def waiting_share(policies: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the time up to its newest version in which the learner waited for rewards."""
    spent = [figure for each in policies for figure in each["metrics"].items() if figure[0].startswith("seconds_")]
    whole_s = sum(seconds for _, seconds in spent)
    return sum(seconds for name, seconds in spent if name == "seconds_waiting") / whole_s if whole_s else None


def _watched(report: dict[str, Any]) -> list[str]:
    """Return the lines about alarms, for a run in which somebody games the signal or an alarm opened."""
    alarms = report.get("alarms") or []
    opened = ", ".join(f"{alarm['monitor']} of {alarm['workload']} at {alarm['opened_s']:.0f} s" for alarm in alarms)
    lines = [f"alarms                {opened or 'none'}; {len(report.get('rolled_back') or [])} rolled back"]
    if report.get("exploit", "none") != "none":
        lines.insert(0, f"exploit               {report['exploit']}")
    return lines if alarms or len(lines) > 1 else []


def _interval(rise: tuple[float, float] | None) -> str:
    return "" if rise is None else f" (95 % interval of the rise: {rise[0]:+.0%} to {rise[1]:+.0%})"


def succeeded(report: dict[str, Any]) -> bool:
    nothing_lost = not (report["lost_turns"] or report["lost_outcomes"] or report["failed_requests"])
    start, end, rise = report["quality_start"], report["quality_end"], report["quality_rise"]
    if start is None or end is None or rise is None:
        return False
    return nothing_lost and round(end - start, 9) >= RISE and rise[0] > 0  # rounded: 0.6 - 0.4 < 0.2


def write(report: dict[str, Any], curves: RunCurves, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (output / "report.json").write_text(json.dumps(report | {"curves": curves.as_json()}, indent=2) + "\n")
    draw(curves, report, output / "curves.png")


def summary(report: dict[str, Any], output: Path) -> str:
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:.0%}"

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} s"

    start, end = percent(report["quality_start"]), percent(report["quality_end"])
    lines = [
        f"true quality          {start} at the start, {end} at the end{_interval(report['quality_rise'])}",
        f"reported accepted     {percent(report['reported_accept_end'])} at the end",
        f"feedback to served    p50 {seconds(report['feedback_to_served_p50_s'])}, "
        f"p99 {seconds(report['feedback_to_served_p99_s'])}",
        f"policy versions       {report['versions']}, {report['swaps'] or 0} swaps",
        f"sessions, turns       {report['sessions']}, {report['turns']}; "
        f"{percent(report['share_learned_from'])} of the rewarded turns trained the model",
        f"idle                  engine {percent(report['engine_idle_share'])}, learner "
        f"{percent(report['learner_idle_share'])}",
        f"failed, lost          {report['failed_requests']} requests; "
        f"{report['lost_turns']} turns, {report['lost_outcomes']} outcomes; {report['turned_away']} users turned away",
        f"written               {output / 'report.json'}, {output / 'curves.png'}",
    ]
    if "quality_before_shift" in report:
        lines.insert(
            1,
            f"taste shift           {percent(report['quality_before_shift'])} before; nine tenths of it again after "
            f"{seconds(report['recovered_after_s'])}",
        )
    lines[1:1] = _watched(report)
    verdict = "The model learned from its users." if succeeded(report) else "The run did not meet its bar."
    return "\n".join([*lines, verdict])
