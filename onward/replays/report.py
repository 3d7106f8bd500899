"""The report of a replay: figures of the candidate and of every update, to be read, drawn and compared.

Nothing in report.json depends on the machine or the time of day, but for the command and the commit in `provenance`;
what does is in pace.json."""

import hashlib
import json
import logging
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from core.codec import plain
from core.errors import ConfigError
from core.events import PolicyVersion, Reward
from core.provenance import in_png
from core.reward_spec import RewardSpec
from core.settings import LearnerSettings
from learner.sequences.resemblance import KeptOut
from learner.timing import is_of_machine
from learner.versions.provenance import ancestry
from onward.wiring.foundation import Foundation

logger = logging.getLogger(__name__)
FILE = "report.json"
PACE_FILE = "pace.json"
_SUMMARY = ("missing", "rewards", "rewards_digest", "version", "weights_digest", "weights", "left_out", "held_out")
_DRAWN = {
    "reward": "mean reward of the batch",
    "kl": "KL to the anchor (k3)",
    "entropy": "entropy, nats",
    "kept_share": "share of turns kept",
}


def report_of(
    target: Foundation,
    rewards: Sequence[Reward],
    spec: RewardSpec,
    settings: LearnerSettings,
    span: tuple[datetime, datetime],
    missing: int,
    kept_out: KeptOut,
) -> dict[str, Any]:
    """Return the report.

    `weights` is a path relative to the replay's directory. `missing`: records of the log that no longer exist anywhere;
    `kept_out`: digests of the solutions that it did not learn, of all suites."""
    made = _lineage(target)
    return {
        "from": span[0].isoformat(),
        "to": span[1].isoformat(),
        "missing": missing,
        "spec": spec.digest,
        "learner": settings.model_dump(mode="json"),
        "rewards": len(rewards),
        "rewards_digest": _digest(rewards),
        "version": plain(made[-1].version),
        "weights_digest": made[-1].digest,
        "weights": str(target.layout.blobs / made[-1].weights),
        "kept_out": sorted(map(text_digest, kept_out.solutions)),
        "strata": strata(rewards),
        "updates": [_told(each, of_machine=False) for each in made if each.updates],
    }


def pace_of(target: Foundation) -> list[dict[str, Any]]:
    """Return the pace of every update: where the time went, and how fast it was."""
    return [_told(each, of_machine=True) for each in _lineage(target) if each.updates]


def _told(policy: PolicyVersion, *, of_machine: bool) -> dict[str, Any]:
    figures = {name: value for name, value in policy.metrics.items() if is_of_machine(name) == of_machine}
    return {"version": plain(policy.version), "turns": policy.turns, **figures}


def summary(report: dict[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in _SUMMARY}


def write(report: dict[str, Any], pace: list[dict[str, Any]], out: Path) -> None:
    (out / FILE).write_text(json.dumps(report, indent=1) + "\n")
    (out / PACE_FILE).write_text(json.dumps(pace, indent=1) + "\n")


def read(out: Path) -> dict[str, Any]:
    """Read a report. Raises ConfigError when there is no replay, or a former build's."""
    path = out / FILE
    if not path.exists():
        raise ConfigError(f"{path}: no such file; `onward replay DIR --out {out}` makes it")
    report = dict(json.loads(path.read_text()))
    if "where" not in report:
        raise ConfigError(f"{path}: of a former build, and does not say what chose its turns; replay it again")
    return report


def strata(rewards: Iterable[Reward]) -> dict[str, dict[str, float]]:
    """Summarise the last revisions of all turns, by namespace, workload and source of the reward."""
    last = {reward.inference_id: reward for reward in rewards}
    values: dict[str, list[float]] = {}
    for reward in (each for each in last.values() if not each.void):
        made_of = "+".join(sorted(reward.components)) or "default"
        values.setdefault(f"{reward.namespace}|{reward.workload}|{made_of}", []).append(reward.value)
    return {name: {"turns": len(each), "reward": statistics.fmean(each)} for name, each in sorted(values.items())}


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw it; the picture holds the report's provenance, as the text `onward` within the PNG.

    Needs the extra `demo`; without it there is the report alone, and the log says so."""
    try:
        import matplotlib as mpl
    except ImportError:
        logger.warning("%s is not drawn: matplotlib is not installed (the extra `demo`)", path)
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    held = report["held_out"]
    columns = 2 if held is None else 3
    figure, axes = plt.subplots(2, columns, figsize=(4.5 * columns, 6), sharex="col")
    for axis, (name, title) in zip(axes[:, :2].flat, _DRAWN.items(), strict=True):
        known = [(each["version"], each[name]) for each in report["updates"] if name in each]
        axis.plot([version for version, _ in known], [value for _, value in known])
        axis.set_title(title, fontsize=10)
    for axis in axes[1, :2]:
        axis.set_xlabel("version")
    if held is not None:
        axes[0, 2].remove()
        _draw_gains(held, axes[1, 2])
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata=in_png(report.get("provenance")))
    plt.close(figure)


def _draw_gains(held: dict[str, Any], axis: Any) -> None:
    """Each estimator's with its interval; or why there is none."""
    axis.set_title("gain on users held out, 95 %", fontsize=10)
    if not held["gains"]:
        axis.text(0.5, 0.5, held["refused"], ha="center", va="center", wrap=True, transform=axis.transAxes)
        axis.set_axis_off()
        return
    names, gains = list(held["gains"]), held["gains"].values()
    axis.vlines(names, [each["low"] for each in gains], [each["high"] for each in gains])
    axis.plot(names, [each["value"] for each in gains], "o")
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.margins(x=0.3)


def _lineage(target: Foundation) -> list[PolicyVersion]:
    """Return the versions from the anchor to the newest."""
    with target.store.look() as view:
        newest, _ = view.policies.newest(1)[0]
    with target.store.look() as view:
        found = [view.policies.get(version) for version in ancestry(target.store, newest.version)]
    return [policy for policy in found if policy is not None]


def text_digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest(rewards: Iterable[Reward]) -> str:
    """Return a digest of what the rewards say: that of builds which knew less, where they say no more."""
    digest = hashlib.blake2b(digest_size=16)
    for reward in rewards:
        said = {"type": "reward"} | msgspec.structs.asdict(reward)
        del said["environment"], said["said_by"]  # of the turn, and of its outcomes
        for later in ("void", "hints", "edits", "edited_by"):
            if not said[later]:
                del said[later]
        digest.update(msgspec.msgpack.encode(said))
    return digest.hexdigest()
