"""`onward replay`: scores and learns again from a directory's log and archive, from the anchor, in another directory.

Time is the log's; every version is released as soon as it is made. The same records (wherever they are now), spec,
settings and seed give the same rewards and the same weights, down to the digest."""

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from core.clock import ManualClock
from core.errors import ConfigError
from core.events import Release, Reward, Topic
from core.ids import InferenceId, PolicyRef
from core.model.files import weight_files
from core.model.probe_prompts import probe_prompts
from core.model.weights_digest import digest_of_shards
from core.operations.exclusions import EXCLUDED, Excluded, is_excluded
from core.reward_spec import load_reward_spec
from core.reward_spec.outcome_ages import with_ages
from core.settings import LearnerSettings
from core.stages.rounds import Rounds
from learner.sequences.resemblance import KeptOut
from learner.stage import Learner
from learner.versions.probe import probe_of_model
from onward.replays.estimates.held_out import judge, split
from onward.replays.exports.choice import TurnChoice, chosen_of, where_of
from onward.replays.exports.reports import require_folder
from onward.replays.history import open_history, period, put_turns_of, require_directory, span, watched
from onward.replays.provenance import VersionRange, provenance_of
from onward.replays.report import draw, pace_of, report_of, summary, write
from onward.wiring.foundation import Foundation, open_foundation, open_offline, read_directory
from onward.wiring.suites.kept_out import kept_out
from scoring.rescore import rescore
from serving.releases import ensure_anchor
from serving.rendering import load_renderer

NOT_CHOSEN: Final = "not_chosen"
"""Of a turn that has a reward and that `--where` leaves out."""


def replay_log(
    directory: Path,
    out: Path,
    spec: Path | None,
    seed: int | None,
    begin: str | None = None,
    end: str | None = None,
    overrides: Mapping[str, str] | None = None,
    holdout: float = 0.0,
    where: Sequence[str] = (),
) -> dict[str, Any]:
    """Replay what was logged from `begin` to before `end`, of the turns that `where` chooses.

    `spec`, `seed` and what `overrides` leaves open default to the directory's own. `holdout`: the share of users that
    the candidate does not learn from, and is judged by. Each update's figures go into report.json and report.png of
    `out`. Raises ConfigError when `out` is in use already, when another model generated the turns, or naming the option
    at fault; then nothing is left in `out`."""
    require_folder(out, "a candidate and its report")
    require_directory(directory, overrides)
    if not 0 <= holdout < 1:
        raise ConfigError(f"--holdout {holdout:g}: want a share from 0 to below 1")
    times, choice = period(begin, end), where_of(where)
    _require_empty(out)
    with (
        closing(open_foundation(directory, overrides or {})) as source,
        Progress(console=Console(stderr=True)) as progress,  # on stdout is what is returned
    ):
        _require_the_model_that_spoke(source)
        reward_spec, settings = source.spec, source.settings.learner
        if spec is not None:
            reward_spec = load_reward_spec(spec)
            settings = with_ages(read_directory(directory, overrides)[1].learner, reward_spec)
        if seed is not None:
            settings = settings.model_copy(update={"seed": seed})
        suites = kept_out(settings)
        history = open_history(source, Topic.TURNS, *times)
        first, last = span(watched(history, progress, "look"), source.layout.root)
        with _made(out), closing(open_offline(out)) as target:
            versions = VersionRange()
            seen = versions.seen(watched(history, progress, "score"))
            records = put_turns_of(seen, target.store, with_outcomes=bool(choice.outcomes))
            scored = rescore(records, reward_spec, target.store, ManualClock(first), until=last)
            with source.store.look() as view:
                excluded = view.exclusions.after()
            rewards, versions, others = _chosen(choice, excluded, list(scored), target, versions)
            learned, held = split(rewards, holdout, target)
            left_out = _learn(source, target, learned, settings, suites, progress)
            judged = judge(target, source.model, held, settings) if holdout else None
            report = report_of(target, rewards, reward_spec, settings, (first, last), history.missing, suites) | {
                "where": dict(choice.told),
                "left_out": left_out | others,
                "holdout": holdout,
                "held_out": judged,
                "provenance": provenance_of(source, versions, {"learner": settings.seed}),
            }
            pace = pace_of(target)
    write(report, pace, out)
    draw(report, out / "report.png")
    return summary(report)


def _chosen(
    choice: TurnChoice, excluded: Sequence[Excluded], rewards: list[Reward], target: Foundation, versions: VersionRange
) -> tuple[list[Reward], VersionRange, dict[str, int]]:
    """Return the rewards of chosen turns that nobody excluded, the versions that said these, and counts of the others.

    Everything was scored, since a reward may depend on other turns. Raises ConfigError where none is left."""
    if choice.is_of_all and not excluded:
        return rewards, versions, {}
    revisions = defaultdict[InferenceId, list[Reward]](list)
    for reward in rewards:
        revisions[reward.inference_id].append(reward)
    kept, said_by, chosen = dict[InferenceId, list[Reward]](), VersionRange(), 0
    for turn in chosen_of(choice, revisions.keys(), target.store):
        chosen += 1
        if mine := [each for each in revisions[turn.inference_id] if not is_excluded(turn, each, excluded)]:
            kept[turn.inference_id] = mine
            said_by.add_turn(turn)
    if not kept:
        said = "".join(f" --where {kind}={value}" for kind, value in choice.told.items())
        why = f"is chosen by{said}" if not chosen else "is left: what is not excluded is none"
        raise ConfigError(f"none of {len(revisions)} turns with a reward {why}")
    counts = {NOT_CHOSEN: len(revisions) - chosen, EXCLUDED: chosen - len(kept)}
    others = {why: count for why, count in counts.items() if count}
    return [each for each in rewards if each in kept.get(each.inference_id, ())], said_by, others


def _require_empty(out: Path) -> None:
    try:
        is_used = out.exists() and any(out.iterdir())
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
    if is_used:
        raise ConfigError(f"{out}: not empty")


@contextmanager
def _made(out: Path) -> Iterator[None]:
    """Make the candidate's directory, and leave nothing in it where the replay is refused amid its work.

    Raises ConfigError where it cannot be made, or is in use by now."""
    was_there = out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
    _require_empty(out)
    try:
        yield
    except ConfigError:
        shutil.rmtree(out, ignore_errors=True)
        if was_there:
            out.mkdir(exist_ok=True)
        raise


def _require_the_model_that_spoke(source: Foundation) -> None:
    """Require the model that generated the turns, as far as the directory knows its first version.

    A log alone does not say."""
    with source.store.look() as view:
        versions = view.policies.versions()
        first = view.policies.get(versions[0]) if versions else None
    ours = digest_of_shards(weight_files(source.model))
    if first is not None and first.digest != ours:
        raise ConfigError(
            f"{source.layout.root}: its turns are of versions of other weights ({first.digest}) than those of "
            f"serving.model, {source.model} ({ours})"
        )


def _learn(
    source: Foundation,
    target: Foundation,
    rewards: list[Reward],
    settings: LearnerSettings,
    suites: KeptOut,
    progress: Progress,
) -> dict[str, int]:
    """Learn; return how many turns never trained, by reason."""
    clock = ManualClock(rewards[0].decided_at if rewards else source.clock.now())
    ensure_anchor(
        target.store,
        target.log,
        target.weights,
        target.blobs,
        source.model,
        source.settings.serving.model_name,
        target.settings.serving.cluster,
        partial(probe_of_model, device=settings.device, prompts=probe_prompts(load_renderer(source.model))),
        clock,
    )
    learner = Learner(
        target.log,
        target.store,
        target.weights,
        target.blobs,
        settings,
        source.model,
        target.layout.learner,
        clock,
        lambda: suites,
        load_renderer(source.model).tokenizer_digest,
    )
    try:
        rounds = Rounds("learner", learner)
        task = progress.add_task("learn", total=len(rewards))
        for start in range(0, len(rewards), settings.batch.min_turns):
            part = rewards[start : start + settings.batch.min_turns]
            target.log.append_blocking(Topic.REWARDS, part)
            clock.advance_to(part[-1].decided_at)
            while rounds.step(0.0):
                _release_newest(target, learner.newest, clock)
            progress.advance(task, len(part))
        return dict(learner.left_out)
    finally:
        learner.close()


def _release_newest(target: Foundation, newest: PolicyRef | None, clock: ManualClock) -> None:
    """Offline nobody is served: each version counts as live at once, so that the learner goes on from it."""
    cluster = target.settings.serving.cluster
    with target.store.look() as view:
        live = view.releases.live(cluster)
    if newest is not None and newest != live:
        release = Release(version=newest, cluster=cluster, state="live", why="replay", by="gate", at=clock.now())
        with target.store.work() as work:
            work.releases.put(release)
        target.log.append_blocking(Topic.RELEASES, [release])
