"""`onward ope`: what checkpoints, and versions of a service, would have earned on its logged turns, side by side.

Every candidate is judged on the same turns, so that they can be compared in pairs. Nothing is drawn by chance: the same
past and the same candidates give the same report."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from core.errors import ConfigError
from core.store import open_sqlite
from learner.batches.backlog import Bounds, refusal
from learner.off_policy.estimators import off_policy, paired
from learner.off_policy.log_ratios import logged_turns
from learner.off_policy.overlap import LoggedTurns
from learner.sequences.masks import MasksOfTurns
from learner.sequences.scored import ScoredTurn
from onward.replays.estimates.candidates import Candidate, candidates_of
from onward.replays.estimates.held_out import figures, is_held_out
from onward.replays.estimates.turns_kept import difference
from onward.replays.exports.choice import TurnChoice
from onward.replays.exports.past import ChosenPast, Logged
from onward.replays.exports.reports import report_file
from onward.replays.history import require_directory
from onward.replays.provenance import VersionRange, provenance_of
from onward.replays.scratch import scratch
from onward.wiring.foundation import Foundation, open_foundation
from serving.rendering import load_renderer

FLATTERED = (
    "Turns that a candidate learned from make it look better than it is: judge it by turns logged after it was made "
    "(--from), or by users that its replay held out (--holdout)."
)


def evaluate(
    directory: Path,
    policies: Sequence[Path],
    versions: Sequence[int],
    choice: TurnChoice,
    holdout: float | None,
    out: Path | None,
    overrides: Mapping[str, str],
) -> dict[str, Any]:
    """Judge the candidates by the chosen turns; return the report, which is also written to `out`.

    `holdout`: only by the users whom `onward replay --holdout` of that share held out. Raises ConfigError naming the
    option at fault, before anything is computed."""
    require_directory(directory, overrides)
    if holdout is not None and not 0 < holdout <= 1:
        raise ConfigError(f"--holdout {holdout:g}: want a share above 0, and 1 at most")
    with (
        nullcontext() if out is None else report_file(out) as write,
        closing(open_foundation(directory, overrides)) as source,
        scratch(source.layout.estimated, f"{directory}") as place,
        closing(open_sqlite(place / "store.db")) as store,
        Progress(console=Console(stderr=True)) as progress,  # on stdout is what is returned
    ):
        candidates = candidates_of(source, policies, versions)
        past = ChosenPast(source, store, choice)
        past.read(progress)
        turns = _Turns(_bounds(source, candidates), holdout)
        for session in past.sessions():
            turns.add(session)
        report = {
            "provenance": provenance_of(source, turns.versions),
            "choice": dict(choice.told),
            "holdout": holdout,
            **turns.told(),
            "missing": past.missing,
            **_judged(source, candidates, turns.batch, progress),
        }
        if write is not None:
            write(report, _rows(report))
    return report


@dataclass
class _Turns:
    """The turns that can judge a candidate, and how many cannot, by reason."""

    bounds: Bounds
    holdout: float | None
    chosen: int = 0
    batch: list[ScoredTurn] = field(default_factory=list)
    versions: VersionRange = field(default_factory=VersionRange)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, session: Sequence[Logged]) -> None:
        for logged in session:
            self.chosen += 1
            why = self._refusal(logged)
            if why is not None:
                self.left_out[why] += 1
            elif logged.reward is not None:
                self.batch.append(ScoredTurn(logged.turn, logged.reward))
                self.versions.add_turn(logged.turn)

    def _refusal(self, logged: Logged) -> str | None:
        if self.holdout is not None and not is_held_out(logged.turn, self.holdout):
            return "not_held_out"
        if logged.reward is None:
            return "unrewarded"
        return "void" if logged.reward.void else refusal(logged.turn, logged.reward, self.bounds)

    def told(self) -> dict[str, Any]:
        values = [scored.reward.value for scored in self.batch]
        return {
            "turns": self.chosen,
            "judged_by": len(self.batch),
            "left_out": dict(sorted(self.left_out.items())),
            "earned": sum(values) / len(values) if values else None,
        }


def _bounds(source: Foundation, candidates: Sequence[Candidate]) -> Bounds:
    """Return what a turn must be for every candidate to judge it."""
    renderer = load_renderer(source.model, family=source.settings.serving.family)
    context = min((each.context for each in candidates if each.context is not None), default=None)
    return Bounds(renderer.tokenizer_digest, context, masks=MasksOfTurns(source.model))


def _judged(
    source: Foundation, candidates: Sequence[Candidate], batch: Sequence[ScoredTurn], progress: Progress
) -> dict[str, Any]:
    learner, seen = source.settings.learner, dict[str, LoggedTurns]()
    for candidate in progress.track(candidates, description="judge") if batch else ():
        model = candidate.load(learner.device)  # one at a time: each has all its weights in memory
        seen[candidate.name] = logged_turns(model, batch, learner.compute.micro_batch_tokens, learner.device)
    nothing = LoggedTurns.of([], [], [])
    return {
        "candidates": [
            {"name": each.name, "digest": each.digest} | figures(off_policy(seen.get(each.name, nothing)))
            for each in candidates
        ],
        "paired": [
            {"one": one, "other": other} | difference(paired(seen[one], seen[other]))
            for other, one in combinations(seen, 2)
        ],
    }


def _rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each candidate's gain over what was earned, and for each pair's difference."""
    alone = [_row(each["name"], None, each["digest"], each, each["gains"]) for each in report["candidates"]]
    pairs = [_row(each["one"], each["other"], None, each, each["differences"]) for each in report["paired"]]
    return alone + pairs


def _row(
    name: str, less: str | None, digest: str | None, told: Mapping[str, Any], estimates: Mapping[str, Any]
) -> dict[str, Any]:
    stated = estimates.get("stated", dict.fromkeys(("value", "low", "high")))
    return {
        "candidate": name,
        "less": less,
        "digest": digest,
        "gain": stated["value"],
        "gain_low": stated["low"],
        "gain_high": stated["high"],
        "refused": told["refused"],
    }


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the report for people: gains over what was earned, differences of pairs, and what they do not say."""
    earned = report["earned"]
    mean = "" if earned is None else f", which earned {earned:+.3f} a turn"
    console.print(f"judged by {report['judged_by']} of {report['turns']} turns{mean}")
    for why, count in report["left_out"].items():
        console.print(f"left out: {count} {why}")
    table = Table("candidate", "gain a turn", "95 %", "digest")
    for each in report["candidates"]:
        table.add_row(each["name"], *_cells(each["gains"]), each["digest"][:12])
    for each in report["paired"]:
        table.add_row(f"{each['one']} less {each['other']}", *_cells(each["differences"]), "")
    console.print(table)
    for each in report["candidates"]:
        console.print(f"{each['name']}: {each['says']}", soft_wrap=True)
    if report["holdout"] is None:
        console.print(FLATTERED, soft_wrap=True)


def _cells(estimates: Mapping[str, Mapping[str, float]]) -> tuple[str, str]:
    stated = estimates.get("stated")
    return (
        ("-", "cannot be told")
        if stated is None
        else (f"{stated['value']:+.3f}", f"{stated['low']:+.3f} to {stated['high']:+.3f}")
    )
