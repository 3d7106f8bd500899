"""`onward propose`: the newest version of a replay, judged beside what a service serves, and handed to its releases.

What it was judged to be stands on the version. The release controller obeys: it is refused, held until an operator
promotes it, or released as any candidate is.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from core.codec import to_builtins
from core.errors import ConfigError
from core.events import GateVerdict, PolicyVersion, Topic
from core.ids import PolicyRef
from core.model.probes import get_probe, put_probe
from core.ports import Renderer, WeightsRef
from learner.versions import manifest
from onward.replays.history import require_directory
from onward.replays.provenance import made_by
from onward.replays.report import read, text_digest
from onward.wiring.evals.building import build_task_cases_of_service
from onward.wiring.foundation import Foundation, open_foundation, open_offline
from onward.wiring.suites.kept_out import load_suites
from serving.evals.cases import Suite, load_suite
from serving.evals.engine_answers import EngineAnswers, EngineTalk
from serving.evals.gate import GateBounds, GateDecision, evaluate
from serving.evals.run import SuiteLimits
from serving.evals.verdicts import LEFT, of_cases, of_users, together

if TYPE_CHECKING:
    from onward.wiring.evals.task_cases import TaskCases
    from serving.engines.local import LocalEngine


def propose(
    replay: Path,
    directory: Path,
    suite: Path | None,
    limits: SuiteLimits,
    bounds: GateBounds,
    reward_margin: float,
    overrides: Mapping[str, str] | None = None,
) -> PolicyVersion:
    """Put a replay's version among the service's candidates; return it with its verdict.

    Raises ConfigError when `replay` is no replay, learned nothing, may have memorised a solution of `suite` or of one
    that the service keeps out, or began from another model than the service; and when nothing was ever served."""
    report = read(replay)
    require_directory(directory, overrides)
    cases = None if suite is None else load_suite(suite)
    with closing(open_foundation(directory, overrides or {})) as target, closing(open_offline(replay)) as source:
        own = target.settings.learner.admission.keep_out
        _require_kept_out(suite, cases, own, report, replay)
        made = _newest(source, replay)
        _check_same_anchor(source, target, replay)
        tasks = None if cases is None else _task_cases(target, cases, limits)
        draft = _hand_over(source, target, made)
        found = [] if report["held_out"] is None else [of_users(report["held_out"], reward_margin)]
        if cases is not None:
            found.append(_ask(target, draft, cases, limits, bounds, tasks))
        is_left = not found and target.settings.release.evals.suite is not None
        verdict = LEFT if is_left else together(found)
        return _publish(target, msgspec.structs.replace(draft, verdict=verdict))


def report_of(policy: PolicyVersion, replay: Path) -> dict[str, Any]:
    """Return what a proposal came to, for programs; `replay`, of the provenance: the replay's own."""
    told = to_builtins({"version": policy.version, "digest": policy.digest, "verdict": policy.verdict})
    return {**told, "provenance": {**made_by(), "replay": read(replay).get("provenance")}}


def _require_kept_out(
    asked: Path | None, cases: Suite | None, own: Sequence[Path], report: dict[str, Any], replay: Path
) -> None:
    """Refuse a replay that may have learned a solution of `--suite`, or what the service keeps out, with its drafts."""
    kept_out = report["kept_out"]
    wanted = {} if cases is None else {f"--suite {asked}": cases.solutions()}
    wanted |= {f"learner.admission.keep_out: {name}": suite.kept_out() for name, suite in load_suites(own).items()}
    found = []
    for option, solutions in wanted.items():
        learnable = sorted(name for name, text in solutions.items() if text_digest(text) not in kept_out)
        found += [f"{option} ({', '.join(learnable)})"] if learnable else []
    if found:
        suites = list(dict.fromkeys(map(str, own if asked is None else [*own, asked])))
        raise ConfigError(
            f"{'; '.join(found)}: {replay} may have learned these solutions by heart: replay it with "
            f"`--set 'learner.admission.keep_out={json.dumps(suites, ensure_ascii=False)}'`"
        )


def _newest(source: Foundation, replay: Path) -> PolicyVersion:
    with source.store.look() as view:
        listed = view.policies.newest(1)
    if not listed or listed[0][0].manifest is None:
        raise ConfigError(f"{replay}: it learned nothing that could be proposed")
    return listed[0][0]


def _check_same_anchor(source: Foundation, target: Foundation, replay: Path) -> None:
    theirs, ours = (_anchor(foundation).digest for foundation in (source, target))
    if theirs != ours:
        raise ConfigError(f"{replay}: it began from other weights ({theirs}) than this service ({ours})")


def _anchor(foundation: Foundation) -> PolicyVersion:
    with foundation.store.look() as view:
        versions = view.policies.versions()
        found = view.policies.get(versions[0]) if versions else None
    if found is None:
        raise ConfigError(f"{foundation.layout.root}: no version was ever served here (`onward run` serves the first)")
    return found


def _hand_over(source: Foundation, target: Foundation, made: PolicyVersion) -> PolicyVersion:
    """Weights, manifest and probe: whatever reads of the version, once it is published, finds all of it."""
    anchor = _anchor(target).version
    with target.store.work() as work:
        version = work.policies.allocate(target.clock.now())
    opened = source.weights.open(_ref(made))
    ref = target.weights.publish(version, opened.shards, anchor, opened.adapter)
    path = manifest.path_of(version)
    merged = _manifest(source, version, anchor)
    target.blobs.put(path, manifest.encode(merged))
    probe = get_probe(source.blobs, made.version)
    put_probe(target.blobs, version, msgspec.structs.replace(probe, weights_digest=ref.digest))
    return msgspec.structs.replace(
        made,
        version=version,
        digest=ref.digest,
        weights=ref.path,
        manifest=path,
        parent=anchor,
        log_offsets={},
        outcome_arrivals=(),
        kept_out=merged.kept_out,
        created_at=target.clock.now(),
    )


def _manifest(source: Foundation, version: PolicyRef, anchor: PolicyRef) -> manifest.Manifest:
    """All updates of the replay as one."""
    updates = [manifest.decode(source.blobs.get(path)) for path in sorted(source.blobs.list("manifests/"))]
    return manifest.as_one(updates, version, anchor)


def _task_cases(target: Foundation, suite: Suite, limits: SuiteLimits) -> "TaskCases | None":
    allowed = limits.allow_commands
    return build_task_cases_of_service(suite, target.layout, target.settings, allowed=allowed, asked_by="--suite")


def _ask(
    target: Foundation,
    draft: PolicyVersion,
    suite: Suite,
    limits: SuiteLimits,
    bounds: GateBounds,
    tasks: "TaskCases | None",
) -> GateVerdict:
    """Ask the cases of the candidate and of the live version, in this process."""
    from serving.engines.local import LocalEngine
    from serving.rendering import load_renderer

    with target.store.look() as view:
        live = view.releases.live(target.settings.serving.cluster)
        serving = None if live is None else view.policies.get(live)
    assert serving is not None, "a service that ran has a live version"
    engine = LocalEngine(target.settings.serving, target.model, target.weights, _ref(_anchor(target)))
    renderer = load_renderer(target.model, family=target.settings.serving.family)
    for policy in {each.version: each for each in (serving, draft)}.values():
        if policy.version not in engine.pinnable():
            engine.load(_ref(policy))
    engine.start()
    try:
        versions = (draft.version, serving.version)
        found = asyncio.run(_judged(suite, engine, renderer, versions, limits, bounds, tasks))
        return of_cases(found, serving.version)
    finally:
        engine.close()


async def _judged(
    suite: Suite,
    engine: "LocalEngine",
    renderer: Renderer,
    versions: tuple[PolicyRef, PolicyRef],
    limits: SuiteLimits,
    bounds: GateBounds,
    tasks: "TaskCases | None",
) -> GateDecision:
    """Ask the cases of a candidate and of the live version; versions work on tasks where there is what they need."""
    answers = [EngineAnswers(engine, renderer, version) for version in versions]
    if tasks is None:
        return await evaluate(suite, answers[0], answers[1], limits, bounds)
    async with tasks.opened(limits.concurrency) as solver_of:
        one, other = (
            solver_of(partial(EngineTalk, engine, renderer, version), engine.context_length) for version in versions
        )
        return await evaluate(suite, answers[0], answers[1], limits, bounds, (one, other))


def _ref(policy: PolicyVersion) -> WeightsRef:
    return WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights, parent=policy.parent)


def _publish(target: Foundation, policy: PolicyVersion) -> PolicyVersion:
    with target.store.work() as work:
        work.policies.put(policy)
    target.log.append_blocking(Topic.POLICIES, [policy])
    return policy
