"""The report on a lesson: what was learned of held-out exercises, how fast, and whether anything was lost."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.provenance import Origin
from simulator.lessons.lesson import Answered, Lesson
from simulator.losses import find_losses
from simulator.outcome.truth import difference_of_shares
from simulator.report import SERVED, SETTLE_S, idle_share, origin, waiting_share
from simulator.service import UNREACHABLE, ServiceView

_TAUGHT_WINDOW = 64  # answers at the beginning and at the end of teaching


async def make_report(lesson: Lesson, service: ServiceView, made: Origin) -> dict[str, Any]:
    """Return the figures of the lesson; None stands for those that nobody could give. `made`: by which command."""
    record, plan = lesson.record, lesson.plan
    losses = await find_losses(record, service, SETTLE_S)
    metrics: dict[str, float] = {}
    policies: list[dict[str, Any]] = []
    try:
        metrics, policies = await service.metrics(), await service.policies()
    except UNREACHABLE as error:
        record.failures.append(f"the service's metrics or policies cannot be read: {error!r}")
    latencies = sorted(answered.latency_s for answered in record.answers)
    taught = sorted(record.of("taught"), key=lambda answered: answered.at_s)
    before, after = record.of("before"), record.of("after")
    return {
        "provenance": origin(made, policies, (answered.version for answered in record.answers), plan.seed),
        "subject": lesson.subject.workload,
        "seed": plan.seed,
        "seconds_taught": plan.seconds,
        "seconds": lesson.elapsed_s,
        "held_out": len(after),
        "right_start": share(before),
        "right_end": share(after),
        "gain": gain(before, after),
        "gain_by_kind": _by_kind(before, after),
        "taught": len(taught),
        "taught_start": share(taught[:_TAUGHT_WINDOW]),
        "taught_end": share(taught[-_TAUGHT_WINDOW:]),
        "feedback_to_served_p50_s": metrics.get('onward_feedback_to_served_quantile_seconds{quantile="0.5"}'),
        "feedback_to_served_p99_s": metrics.get('onward_feedback_to_served_quantile_seconds{quantile="0.99"}'),
        "versions": len(policies),
        "swaps": sum(policy["state"] in SERVED for policy in policies) - 1 if policies else None,
        "turns": len(record.answers),
        "tokens": sum(answered.tokens for answered in record.answers),
        "turn_p50_s": latencies[len(latencies) // 2] if latencies else None,
        "turn_p99_s": latencies[int(len(latencies) * 0.99)] if latencies else None,
        "failed_requests": len(record.failures),
        "lost_turns": losses.turns,
        "lost_outcomes": losses.outcomes,
        "failures": record.failures[:10],
        "engine_idle_share": idle_share(metrics, lesson.elapsed_s),
        "learner_idle_share": waiting_share(policies),
        "updates": [{"version": each["version"], **each["metrics"]} for each in reversed(policies) if each["metrics"]],
        "curve": [[round(answered.at_s, 1), answered.version, int(answered.right)] for answered in taught],
    }


def share(answers: Sequence[Answered]) -> float | None:
    return sum(answered.right for answered in answers) / len(answers) if answers else None


def gain(before: Sequence[Answered], after: Sequence[Answered]) -> tuple[float, float] | None:
    """Return the 95 % interval of the share right after less that before, for these exercises."""
    if not before or not after:
        return None
    right, was_right = (sum(each.right for each in answers) for answers in (after, before))
    return difference_of_shares(right, len(after), was_right, len(before))


def succeeded(report: dict[str, Any]) -> bool:
    """Return whether nothing failed or was lost, and held-out exercises were answered better beyond chance."""
    lost = report["failed_requests"] or report["lost_turns"] or report["lost_outcomes"]
    return not lost and report["gain"] is not None and report["gain"][0] > 0


def write(report: dict[str, Any], output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (output / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def summary(report: dict[str, Any], output: Path) -> str:
    found = report["gain"]
    interval = "" if found is None else f" (95 % interval of the gain: {found[0]:+.2f} to {found[1]:+.2f})"
    lines = [
        f"held-out, right       {_share(report['right_start'])} at the start, {_share(report['right_end'])} at the end"
        f"{interval}, {report['held_out']} answers each at temperature 1",
        f"taught, right         {_share(report['taught_start'])} in the first {_TAUGHT_WINDOW}, "
        f"{_share(report['taught_end'])} in the last, of {report['taught']} answers",
        f"feedback to served    p50 {_seconds(report['feedback_to_served_p50_s'])}, "
        f"p99 {_seconds(report['feedback_to_served_p99_s'])}",
        f"policy versions       {report['versions']}, {report['swaps'] or 0} swaps",
        f"turns                 {report['turns']} in {report['seconds']:.0f} s; "
        f"p50 {_seconds(report['turn_p50_s'])}, p99 {_seconds(report['turn_p99_s'])}",
        f"failed, lost          {report['failed_requests']} requests; "
        f"{report['lost_turns']} turns, {report['lost_outcomes']} outcomes",
        f"written               {output / 'report.json'}",
    ]
    verdict = "The model learned from its users." if succeeded(report) else "The run did not meet its bar."
    return "\n".join([*lines, verdict])


def _by_kind(before: Sequence[Answered], after: Sequence[Answered]) -> dict[str, list[int]]:
    """Return, for each kind of exercise, how many were asked in each examination, right before, and right after."""
    asked, was_right, right = (
        Counter(each.kind for each in answers if each.right or not rightly)
        for answers, rightly in ((after, False), (before, True), (after, True))
    )
    return {kind: [asked[kind], was_right[kind], right[kind]] for kind in sorted(asked)}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
