"""The learner: the stage that turns rewards into policy versions."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

from core.errors import CheckpointError, Fenced, Unavailable
from core.events import Completion, PolicyVersion, Release, Reward, Topic
from core.ids import InferenceId, PolicyRef
from core.model.probes import get_probe
from core.operations.alarms import NOT_FINITE
from core.ports import Blobs, Clock, EventLog, Opened, Record, Store, TopicPartition, Weights, WeightsRef
from core.records.handling import Culprits, attempt, take_all
from core.settings import LearnerSettings
from core.settings.stages import RECORD_ATTEMPTS
from core.stages.sources import OwnRecords
from core.stages.stage import Stage
from learner import skipped
from learner.batches.backlog import Backlog, Bounds, refusal
from learner.directory_lock import DirectoryLock
from learner.model.ranks import ALONE, Ranks
from learner.poison_rewards import put_reward, try_to_pack
from learner.rank_group import RankGroup, adopt, anchor_at, answers
from learner.sequences.resemblance import Solutions
from learner.sequences.scored import Applied, ScoredTurn
from learner.timing import Pace
from learner.updates.update import NonFiniteLoss, UpdateResult, update
from learner.versions import manifest
from learner.versions.checkpoint import Checkpoint, Checkpoints, Meta, contents, restore
from learner.versions.lineage import Lineage
from learner.versions.provenance import ancestry, applied_on
from learner.versions.publish import publish
from learner.versions.version_files import room_for_files, write_files

_IDLE_S = 5.0  # how often one that has nothing to learn from looks at the time
_TIMELY_S = 0.2  # the same while it has something
_TURN_WAIT_S = 60.0  # the writer is behind by seconds at most
logger = logging.getLogger(__name__)


class Learner(Stage):
    """The learner; not thread-safe: one process, one thread.

    After a restart it goes on from the newest whole checkpoint, which says how far the log was read. Raises ConfigError
    when another learner works in the directory."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        weights: Weights,
        blobs: Blobs,
        settings: LearnerSettings,
        model: Path,
        directory: Path,
        clock: Clock,
        solutions: Mapping[str, str] | None = None,
        tokenizer_digest: str | None = None,
        ranks: Ranks = ALONE,
        record_attempts: int = RECORD_ATTEMPTS,
    ) -> None:
        """Make a learner. Turns that resemble `solutions` of eval cases, or have another tokenizer, do not train.

        `ranks`: the processes that follow this one."""
        super().__init__()
        self._solutions = Solutions(solutions or {})
        self._log, self._store, self._weights, self._blobs = log, store, weights, blobs
        self._settings, self._clock = settings, clock
        self._directory = directory
        self._record_attempts = record_attempts
        self._culprits = Culprits("learner", log, store, clock, record_attempts)
        self._checkpoints = Checkpoints(directory)
        self._backlog = Backlog()
        self._lineage = Lineage()
        self._pace = Pace()
        self._drops: dict[str, list[InferenceId]] = {}
        self.left_out = Counter[str]()
        """Turns that left the backlog without any update since this learner began, by reason."""
        self._is_alarmed = True  # maybe, by a learner before this one
        self._afresh = False  # the optimizer
        self._lacking = False  # the store has not all turns of the next batch yet
        with ExitStack() as held:  # one that cannot be made, since something is unavailable, holds nothing
            held.callback(DirectoryLock(directory).release)
            self._reader = log.reader([Topic.REWARDS, Topic.RELEASES])
            held.callback(self._reader.close)
            self.source = OwnRecords(self._reader, self._culprits)
            self._rank_group = RankGroup(model, settings, ranks)
            self._bounds = Bounds(tokenizer_digest, self._rank_group.context_length, self._rank_group.vocabulary)
            self._offsets = {source: self._reader.position(source) for source in self._reader.assignment()}
            self._resume()
            self._held = held.pop_all()

    def handle(self, records: Sequence[Record]) -> None:
        """Admit what was rewarded, follow what was released."""
        self._pace.turn_to("reading")
        for record in records:
            self._offsets[record.source] = record.offset + 1
            match record.event:
                case Reward() as reward:
                    self._admit(reward)
                case Release() as release:
                    self._lineage.follow(release)

    def tick(self) -> float:
        """Train when a batch is due, and publish."""
        self._pace.turn_to("reading")
        self._follow_releases()
        self._move_anchor()
        trained = self._lineage.may_train(self._settings.checkpoints.max_lead) and self._train()
        self._pace.turn_to("waiting")
        if trained or self._can_train():
            return 0.0
        return _TIMELY_S if self._backlog.pending else _IDLE_S

    def _train(self) -> bool:
        """Train if a batch is due; return whether there was one."""
        if not (batch := self._due_batch()):
            return False
        try:
            with self._pace.doing("updating"):
                result = self._rank_group.do(update, batch, self._settings, self._lineage.released)
        except NonFiniteLoss as error:
            self._skip(batch, error)
            return True
        self._is_alarmed = self._is_alarmed and skipped.close_acknowledged(self._store, self._clock.now())
        with self._pace.doing("publishing"):
            policy = self._publish(self._keep(batch, result))
        self._tidy(policy)
        return True

    def recover(self, error: Unavailable | Fenced) -> None:
        """Raise `error`: an update may be half done, and another learner goes on from the newest checkpoint."""
        raise error

    def close(self) -> None:
        self._held.close()

    @property
    def newest(self) -> PolicyRef | None:
        return self._lineage.newest

    # ------------------------------------------------------------------------------------------ admission

    def _can_train(self) -> bool:
        ready = self._backlog.is_ready(self._settings.batch, self._clock.now())
        return ready and not self._lacking and self._lineage.may_train(self._settings.checkpoints.max_lead)

    def _admit(self, reward: Reward) -> None:
        if self._backlog.add(reward):
            for passed_over, why in self._backlog.trim(self._settings.batch.backlog_turns):
                self._drop(passed_over.inference_id, why)

    def _due_batch(self) -> list[ScoredTurn]:
        """Return a batch; [] when none is due, or while the store still lacks the turns."""
        while self._backlog.is_ready(self._settings.batch, self._clock.now()):
            chosen = self._backlog.choose(self._settings.batch.turns)
            found: dict[InferenceId, Completion] = {}
            take_all(chosen, partial(self._find, found), self._set_aside, self._record_attempts)
            if any(reward.inference_id not in self._backlog.pending for reward in chosen):
                continue  # set aside
            self._lacking = len(found) < len(chosen)
            if self._lacking and not self._give_up([r for r in chosen if r.inference_id not in found]):
                return []
            if not self._lacking and not self._refuse(chosen, found):
                return [self._backlog.scored(reward, found[reward.inference_id]) for reward in chosen]
        return []

    def _find(self, found: dict[InferenceId, Completion], chosen: Sequence[Reward]) -> None:
        with self._store.look() as view:
            found |= view.turns.get_many([reward.inference_id for reward in chosen])

    def _give_up(self, missing: Sequence[Reward]) -> bool:
        """Drop rewards whose turns never came; return whether there were any. The writer is only behind for a while."""
        lost = [r for r in missing if (self._clock.now() - r.decided_at).total_seconds() > _TURN_WAIT_S]
        self._backlog.remove(lost)
        for reward in lost:
            self._drop(reward.inference_id, "turn_missing")
        return bool(lost)

    def _refuse(self, chosen: Sequence[Reward], found: dict[InferenceId, Completion]) -> bool:
        """Remove what never trains; return whether there was any."""
        refused = False
        for reward in chosen:
            leave_out = partial(self._leave_out, reward, found[reward.inference_id])
            failure = attempt(leave_out, self._record_attempts)
            if failure is not None:
                self._set_aside(reward, failure)
            refused = refused or reward.inference_id not in self._backlog.pending
        return refused

    def _leave_out(self, reward: Reward, turn: Completion) -> None:
        """Remove the turn unless it may train. Raises what a batch with it would make an update raise."""
        why = refusal(turn, reward, self._bounds) or ("eval_solution" if self._solutions.recalled_in(turn) else None)
        if why is None:
            try_to_pack(self._backlog.scored(reward, turn))
        else:
            self._backlog.remove([reward])
            self._drop(reward.inference_id, why)

    def _set_aside(self, reward: Reward, failure: Exception) -> None:
        put_reward(self._culprits, self._log, reward, failure)
        self._backlog.remove([reward])
        self._drop(reward.inference_id, "failed")

    def _skip(self, batch: Sequence[ScoredTurn], error: NonFiniteLoss) -> None:
        """Skip an update: its turns never train, and are kept whole for an operator, who is alerted."""
        self._backlog.remove([scored.reward for scored in batch])
        for scored in batch:
            self._drop(scored.inference_id, NOT_FINITE)
        place = skipped.keep(self._directory / "skipped", batch, error)
        logger.error("%s; its %d turns are in %s", error, len(batch), place)
        skipped.raise_alarm(self._store, batch, error, self._clock.now())
        self._is_alarmed = True

    def _drop(self, inference_id: InferenceId, why: str) -> None:
        self.left_out[why] += 1
        self._drops.setdefault(why, []).append(inference_id)

    # ------------------------------------------------------------------------------------------ versions

    def _keep(self, batch: Sequence[ScoredTurn], result: UpdateResult) -> Checkpoint:
        """Write a checkpoint with everything that publishing needs, before any of it is published."""
        parent = self._lineage.newest
        assert parent is not None, "training starts from a released version"
        with self._store.work() as work:
            version = work.policies.allocate(self._clock.now(), self._lineage.policy)
        applied = {scored.inference_id: scored.applied for scored in batch if scored.applied}
        self._enter(batch, result, version)
        made = manifest.Manifest(
            version=version,
            parent=parent,
            seed=self._settings.seed,
            settings=self._settings.model_dump_json(),
            turns=result.records,
            rewards=tuple(scored.reward for scored in batch),
            ages_s=tuple(scored.age_s for scored in batch),
            applied=applied,
            drops={why: tuple(ids) for why, ids in self._drops.items()},
            released=tuple(self._lineage.released),
            held_to=self._lineage.anchor,
            afresh=self._afresh,
        )
        self._drops, self._afresh = {}, False
        self._lineage.extend(version)
        meta = self._meta(self._draft(made, batch, result))
        return self._checkpoints.write(self._rank_group.do(contents), meta, manifest.encode(made))

    def _enter(self, batch: Sequence[ScoredTurn], result: UpdateResult, version: PolicyRef) -> None:
        for scored, record in zip(batch, result.records, strict=True):
            if record.dropped is None:
                self._backlog.applied[scored.inference_id] = Applied(
                    revision=record.revision,
                    reward=record.reward,
                    follow=record.follow,
                    credits=scored.reward.credits,
                    scale=record.scale,
                    version=version,
                    received_at=scored.turn.received_at,
                )
        self._backlog.remove([scored.reward for scored in batch])
        admission = self._settings.admission
        limits = [*admission.max_outcome_age_s.values(), admission.usual_max_age_s]
        limits += [admission.late_max_age_s] if admission.late == "kto" else []
        newest = max(scored.reward.decided_at for scored in batch)
        self._backlog.forget_before(newest - timedelta(seconds=max(limits)))

    def _draft(self, made: manifest.Manifest, batch: Sequence[ScoredTurn], result: UpdateResult) -> PolicyVersion:
        trained = [s for s, record in zip(batch, result.records, strict=True) if record.dropped is None]
        return PolicyVersion(
            version=made.version,
            policy=batch[0].turn.policy,
            digest="",
            parent=made.parent,
            manifest=None,
            log_offsets={str(source): offset for source, offset in self._offsets.items()},
            turns=len(trained),
            updates=1,
            metrics=result.metrics | manifest.counts(made) | self._paced(result),
            outcome_arrivals=tuple(s.reward.last_outcome_at for s in trained if s.reward.last_outcome_at),
            weights="",
            created_at=self._clock.now(),
        )

    def _paced(self, result: UpdateResult) -> dict[str, float]:
        peak = self._settings.compute.peak_tflops
        tokens, positions = result.metrics["tokens"], result.metrics["positions"]
        peak_of_all = peak and peak * self._rank_group.num_processes
        return self._pace.take(tokens, positions, self._rank_group.flops_of_a_position, peak_of_all)

    def _meta(self, policy: PolicyVersion) -> Meta:
        return Meta(
            policy=policy,
            lineage=tuple(self._lineage.versions),
            live=self._lineage.live,
            refused=tuple(sorted(self._lineage.refused)),
            released=tuple(self._lineage.released),
            anchor=self._lineage.anchor,
            offsets={str(source): offset for source, offset in self._offsets.items()},
            pending=tuple(self._backlog.pending.values()),
            applied=dict(self._backlog.applied),
        )

    def _publish(self, checkpoint: Checkpoint) -> PolicyVersion:
        """Publish a checkpoint. Its weights are the state's, so a probe made again after a crash has the same bits."""
        probe = self._rank_group.do(answers, get_probe(self._blobs, checkpoint.meta.lineage[0]))
        draft, made, memory = checkpoint.meta.policy, checkpoint.manifest, checkpoint.memory
        with room_for_files(self._directory) as room:
            files = self._rank_group.do(write_files, room, self._settings.compute.published)
            return publish(draft, files, made, memory, probe, self._store, self._log, self._weights, self._blobs)

    def _tidy(self, policy: PolicyVersion) -> None:
        always = frozenset({self._lineage.live} if self._lineage.live is not None else ())
        self._checkpoints.prune(self._settings.checkpoints.keep, always)
        logger.info("version %s from %d turns", policy.version, policy.turns)

    # ------------------------------------------------------------------------------------------ resuming

    def _resume(self) -> None:
        checkpoint, faults = self._checkpoints.newest()
        for fault in faults:
            logger.error("%s; going on from the checkpoint before", fault)
        if checkpoint is not None:
            self._restore(checkpoint)
            self._lineage.live = checkpoint.meta.live
            self._lineage.refused = set(checkpoint.meta.refused)
            self._lineage.released = list(checkpoint.meta.released)
            self._backlog.pending = {reward.inference_id: reward for reward in checkpoint.meta.pending}
            known = {str(source): source for source in self._offsets}
            self._offsets |= {known[name]: offset for name, offset in checkpoint.meta.offsets.items()}
            self._publish(checkpoint)
        self._seek()

    def _seek(self) -> None:
        for source, offset in self._offsets.items():
            self._reader.seek(TopicPartition(source.topic, source.partition), offset)

    def _restore(self, checkpoint: Checkpoint) -> None:
        self._rank_group.do(restore, checkpoint)
        self._afresh = False
        self._backlog.resume(dict(checkpoint.meta.applied))
        self._lineage.versions = list(checkpoint.meta.lineage)
        self._hold_to(checkpoint.meta.anchor)

    def _move_anchor(self) -> None:
        version = self._lineage.due_anchor(self._settings.objective.kl.anchor_versions)
        if version is not None:
            self._hold_to(version)
            logger.info("the KL term holds to version %s from now on", version)

    def _hold_to(self, version: PolicyRef | None) -> None:
        if version != self._lineage.anchor:
            self._rank_group.do(anchor_at, None if version is None else self._open(version))
            self._lineage.anchor = version

    def _open(self, version: PolicyRef) -> Opened:
        """Return a version's published weights."""
        with self._store.look() as view:
            policy = view.policies.get(version)
        assert policy is not None, f"version {version} was released and is not in the store"
        ref = WeightsRef(version=version, digest=policy.digest, path=policy.weights, parent=policy.parent)
        return self._weights.open(ref)

    def _follow_releases(self) -> None:
        """Resume from the live version when the newest one may not be built upon."""
        version = self._lineage.must_resume_from()
        if version is None:
            return
        try:
            checkpoint = self._checkpoints.of(version)
        except CheckpointError as error:
            logger.error("%s; going on from the published weights", error)
            checkpoint = None
        if checkpoint is not None:
            self._restore(checkpoint)
            self._lineage.resumed_from(version, list(checkpoint.meta.lineage[:-1]))
        else:
            self._resume_from_weights(version)
        logger.info("resumed from version %s", version)

    def _resume_from_weights(self, version: PolicyRef) -> None:
        """Resume from published weights: the checkpoint was deleted, or the version is another learner's.

        The optimizer starts afresh; baseline, trust and influence are those published with the version. What the
        lineage has learned from is read from its manifests."""
        path = manifest.memory_path_of(version)
        memory = self._blobs.get(path) if self._blobs.exists(path) else None
        self._rank_group.do(adopt, self._open(version), self._settings, memory)
        self._afresh = True
        lineage = ancestry(self._store, version)
        self._backlog.resume(applied_on(lineage, self._blobs))
        self._lineage.resumed_from(version, lineage[:-1])
        if self._lineage.anchor not in lineage:
            self._hold_to(None)
