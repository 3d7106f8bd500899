"""The learner: the stage that turns rewards into policy versions."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from core.errors import CheckpointError, Fenced, Unavailable
from core.events import Completion, Release, Reward, Topic
from core.ids import InferenceId, PolicyRef
from core.operations.alarms import NOT_FINITE
from core.ports import Blobs, Clock, EventLog, Record, Store, TopicPartition, Weights
from core.records.handling import Culprits, attempt, take_all
from core.settings import LearnerSettings
from core.settings.stages import RECORD_ATTEMPTS
from core.stages.sources import OwnRecords
from core.stages.stage import Stage
from learner import skipped
from learner.batches.backlog import Backlog, Bounds, refusal
from learner.batches.kept_out import SuiteAdmission
from learner.checkpointing import Checkpointing
from learner.directory_lock import DirectoryLock
from learner.model.ranks import ALONE, Ranks
from learner.past import Past, Reached
from learner.poison_rewards import put_reward, try_to_pack
from learner.publishing import Publisher, Remaking
from learner.rank_group import RankGroup
from learner.reliving import Reliving, Unlike
from learner.sequences.masks import RationedMasks, masks_of
from learner.sequences.resemblance import KeptOut
from learner.sequences.scored import ScoredTurn
from learner.timing import DISK_BYTES, Pace
from learner.traces import VersionTraces
from learner.updates.update import NonFiniteLoss, UpdateResult, update
from learner.versions import manifest
from learner.versions.checkpoint import Checkpoints
from learner.versions.journal import Entry, Journal
from learner.versions.lineage import Lineage
from learner.versions.provenance import ancestry, applied_on
from learner.versions.relearning import Relearning

_TURN_WAIT_S = 60.0  # the writer is behind by seconds at most
logger = logging.getLogger(__name__)


class Learner(Stage):
    """The learner; not thread-safe: one process, one thread.

    After a restart it goes on from its journal, which says how far the log was read, and makes the weights of the
    newest version again from the last checkpoint. Raises ConfigError when another learner works in the directory."""

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
        kept_out: Callable[[], KeptOut] = KeptOut,
        tokenizer_digest: str | None = None,
        ranks: Ranks = ALONE,
        record_attempts: int = RECORD_ATTEMPTS,
    ) -> None:
        """Make a learner. Turns that resemble a solution of `kept_out`, or have another tokenizer, do not train.

        `ranks`: the processes that follow this one."""
        super().__init__()
        self._eval_suites = SuiteAdmission(kept_out, model)
        self._log, self._store, self._weights, self._blobs = log, store, weights, blobs
        self._settings, self._clock, self._masks = settings, clock, masks_of(model)
        self._directory, self._record_attempts = directory, record_attempts
        self._culprits = Culprits("learner", log, store, clock, record_attempts)
        self._journal = Journal(directory)
        self._backlog = Backlog.of(settings)
        self._relearning = Relearning(store, blobs, self._backlog, self._drop)
        self._lineage, self._pace, self._traces = Lineage(), Pace(), VersionTraces(clock)
        self._drops: dict[str, list[InferenceId]] = {}
        self.left_out = Counter[str]()
        """Turns that left the backlog without any update since this learner began, by reason."""
        self._is_alarmed = True  # maybe, by a learner before this one
        self._afresh = False  # the optimizer
        self._is_whole = False  # no update or change of versions is half done
        self._lacking = False  # the store has not all turns of the next batch yet
        with ExitStack() as held:  # one that cannot be made, since something is unavailable, holds nothing
            held.callback(DirectoryLock(directory).release)
            self._reader = log.reader([Topic.REWARDS, Topic.RELEASES])
            held.callback(self._reader.close)
            self.source = OwnRecords(self._reader, self._culprits)
            self._rank_group = group = RankGroup(model, settings, ranks)
            self._reliving = Reliving(lambda: self._rank_group, store, weights, blobs)
            checkpoints = Checkpoints(directory)
            self._past = Past(group, self._reliving, checkpoints, directory)
            self._publisher = Publisher(group, store, log, weights, blobs, directory, self._relearning)
            self._remaking = Remaking(self._past, self._reliving, self._publisher, store, clock)
            self._checkpointing = Checkpointing(checkpoints, group, self._lineage, settings.checkpoints)
            masks = RationedMasks(self._masks, clock.monotonic)
            self._bounds = Bounds(tokenizer_digest, group.context_length, group.vocabulary, masks)
            self._offsets = {source: self._reader.position(source) for source in self._reader.assignment()}
            self._resume()
            self._is_whole = True
            self._held = held.pop_all()

    def handle(self, records: Sequence[Record]) -> None:
        """Admit what was rewarded, follow what was released."""
        self._pace.turn_to("reading")
        for record in records:
            self._offsets[record.source] = record.offset + 1
            match record.event:
                case Reward() as reward:
                    self._relearning.admit(reward, self._settings.batch.backlog_turns)
                case Release() as release:
                    self._lineage.follow(release)
                    self._traces.follow(release)

    def tick(self) -> float:
        """Train when a batch is due, and publish."""
        self._pace.turn_to("reading")
        self._is_whole = False
        trained, stands = False, self._goes_back()
        if not stands:
            self._follow_releases()
            self._move_anchor()
            trained = self._lineage.may_train(self._settings.checkpoints.max_lead) and self._train()
        self._is_whole = True
        with self._pace.doing("saving"):
            if self._checkpointing.is_due():
                self._checkpointing.begin(self._past.base, self._backlog.applied)
            self._remaking.tell(self._checkpointing.versions, self._lineage.policy)
        self._pace.turn_to("waiting")
        if trained or (not stands and self._can_train()):
            return 0.0
        return self._backlog.look_in_s(self._settings.batch, self._clock.now())

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
            policy = self._publisher.publish(self._keep(batch, result))
            self._journal.prune()
        logger.info("version %s from %d turns", policy.version, policy.turns)
        self._traces.made(policy, batch)
        return True

    def recover(self, error: Unavailable | Fenced) -> None:
        """Raise `error`: an update may be half done, and another learner goes on from the journal."""
        raise error

    def close(self) -> None:
        """Write a last checkpoint, unless an error left the weights in the middle of something."""
        with self._held:
            if self._is_whole and self._checkpointing.is_missing():
                self._checkpointing.begin(self._past.base, self._backlog.applied)
            self._checkpointing.wait()

    @property
    def newest(self) -> PolicyRef | None:
        return self._lineage.newest

    # ------------------------------------------------------------------------------------------ admission

    def _can_train(self) -> bool:
        may_train = self._lineage.may_train(self._settings.checkpoints.max_lead)
        return may_train and not self._lacking and self._is_ready()

    def _is_ready(self) -> bool:
        now = self._clock.now()
        self._relearning.feed(self._settings.batch, now)
        return self._backlog.is_ready(self._settings.batch, now)

    def _due_batch(self) -> list[ScoredTurn]:
        """Return a batch; [] when none is due, or while the store still lacks the turns."""
        while self._is_ready():
            self._eval_suites.look_again()
            chosen = self._backlog.choose(self._settings.batch, self._clock.now())
            found: dict[InferenceId, Completion] = {}
            take_all(chosen, partial(self._find, found), self._set_aside, self._record_attempts)
            if any(reward.inference_id not in self._backlog.pending for reward in chosen):
                continue  # set aside
            self._lacking = len(found) < len(chosen)
            if self._lacking and not self._give_up([r for r in chosen if r.inference_id not in found]):
                return []
            if not self._lacking and not self._refuse(chosen, found):
                return [self._eval_suites.without_told(self._backlog.scored(r, found[r.inference_id])) for r in chosen]
        return []

    def _find(self, found: dict[InferenceId, Completion], chosen: Sequence[Reward]) -> None:
        with self._store.look() as view:
            found |= view.consents.heeded(view.turns.get_many([reward.inference_id for reward in chosen]))

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
            if (failure := attempt(leave_out, self._record_attempts)) is not None:
                self._set_aside(reward, failure)
            refused = refused or reward.inference_id not in self._backlog.pending
        return refused

    def _leave_out(self, reward: Reward, turn: Completion) -> None:
        """Remove the turn unless it may train. Raises what a batch with it would make an update raise."""
        scored = self._backlog.scored(reward, turn)
        is_void = reward.void and not scored.is_correction  # else what it taught is taken back
        bounds = self._bounds.of_a_correction() if scored.is_correction else self._bounds
        why = "void" if is_void else refusal(turn, reward, bounds)
        why = why or self._relearning.refusal(scored) or self._eval_suites.refusal(scored)
        if why is None:
            try_to_pack(scored, self._masks)
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
        skipped.skip(self._directory / "skipped", self._store, batch, error, self._clock.now())
        self._is_alarmed = True

    def _drop(self, inference_id: InferenceId, why: str) -> None:
        self.left_out[why] += 1
        self._drops.setdefault(why, []).append(inference_id)

    # ------------------------------------------------------------------------------------------ versions

    def _keep(self, batch: Sequence[ScoredTurn], result: UpdateResult) -> Entry:
        """Write a journal entry with everything that publishing needs, before any of it is published."""
        parent = self._lineage.newest
        assert parent is not None, "training starts from a released version"
        with self._store.work() as work:
            version = work.policies.allocate(self._clock.now(), self._lineage.policy)
        applied = {scored.inference_id: scored.applied for scored in batch if scored.applied}
        self._backlog.enter(batch, result.records, version, self._settings.admission)
        self._backlog.remove([scored.reward for scored in batch])
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
            kept_out=self._eval_suites.take(),
        )
        self._drops, self._afresh = {}, False
        self._lineage.extend(version)
        entry = Entry(
            policy=manifest.draft(made, batch, self._figures(result), self._offsets, self._clock.now()),
            manifest=made,
            lineage=tuple(self._lineage.versions),
            live=self._lineage.live,
            canary=self._lineage.canary,
            refused=tuple(sorted(self._lineage.refused)),
            offsets={str(source): offset for source, offset in self._offsets.items()},
            pending=tuple(self._backlog.pending.values()),
            again=tuple(self._relearning.again),
            later=tuple(self._relearning.later),
            heeded=self._relearning.heeded,
        )
        self._journal.write(entry)
        return entry

    def _figures(self, result: UpdateResult) -> dict[str, float]:
        peak = self._settings.compute.peak_tflops
        tokens, positions = result.metrics["tokens"], result.metrics["positions"]
        peak_of_all = peak and peak * self._rank_group.num_processes
        pace = self._pace.take(tokens, positions, self._rank_group.flops_of_a_position, peak_of_all)
        return result.metrics | pace | {DISK_BYTES: float(self._checkpointing.disk_bytes)}

    # ------------------------------------------------------------------------------------------ resuming

    def _resume(self) -> None:
        """Go on from the newest entry whose version is published, or can be made again and published."""
        for entry in self._journal.newest_first():
            if isinstance(entry, CheckpointError):
                logger.error("%s; going on from the version before", entry)
            elif self._goes_on_from(entry):
                break
        for source, offset in self._offsets.items():
            self._reader.seek(TopicPartition(source.topic, source.partition), offset)

    def _goes_on_from(self, entry: Entry) -> bool:
        """Go on from an entry; return False, and forget it, when its version neither is nor can be published."""
        published = self._reliving.published(entry.version)
        try:
            reached = self._past.go_to(entry.lineage, self._settings, entry.manifest)
        except Unlike as difference:
            if published is None:
                logger.error("%s; version %s, which nobody has seen, is forgotten", difference, entry.version)
                self._journal.discard(entry)
                return False
            self._resume_from_weights(entry.version, difference)
        else:
            self._lineage.versions = list(entry.lineage)
            self._take_over(reached)
            if published is None and reached.num_updates:
                self._weights.discard(entry.version)  # of other bits, perhaps, by a learner that was cut off
        self._stand_where(entry)
        if published is None:
            self._publisher.publish(entry)
        else:  # perhaps without being told
            self._log.append_blocking(Topic.POLICIES, [published])
        return True

    def _stand_where(self, entry: Entry) -> None:
        """Stand in the log, and towards releases, where the learner stood that wrote the entry."""
        self._lineage.knew(entry.live, entry.canary, entry.refused, entry.manifest.released)
        self._backlog.pending = {reward.inference_id: reward for reward in entry.pending}
        self._relearning.stand_where(entry)
        self._backlog.mixture.note([*entry.manifest.rewards, *entry.pending])
        known = {str(source): source for source in self._offsets}
        self._offsets |= {known[name]: offset for name, offset in entry.offsets.items()}

    def _take_over(self, reached: Reached) -> None:
        """Take over what belongs to the weights that were loaded or made again."""
        self._afresh = False
        self._backlog.resume(reached.applied)
        self._lineage.anchor = self._reliving.held_to
        if reached.num_updates:
            self._checkpointing.hasten()

    def _move_anchor(self) -> None:
        if (version := self._lineage.due_anchor(self._settings.objective.kl.anchor_versions)) is not None:
            self._reliving.hold_to(version)
            self._lineage.anchor = version
            logger.info("the KL term holds to version %s from now on", version)

    def _follow_releases(self) -> None:
        """Resume from a version that serves if the newest may not be built upon, or from before excluded turns."""
        while version := self._relearning.must_go_back_to(self._lineage) or self._lineage.must_resume_from():
            self._resume_at(version)

    def _goes_back(self) -> bool:
        """Make again what an order waits for; return whether the learner stands there until that serves."""
        version, stood_at = self._remaking.wanted(self._lineage.policy), self._lineage.newest
        if version is not None and stood_at is not None:
            try:
                self._stand_at(ancestry(self._store, version), self._remaking.make)
            except Unlike as difference:
                self._remaking.give_up(version, difference)
                self._resume_at(stood_at)
        return self._remaking.stands(self._lineage.live)

    def _resume_at(self, version: PolicyRef) -> None:
        try:
            self._stand_at(ancestry(self._store, version), self._past.go_to)
        except Unlike as difference:
            self._resume_from_weights(version, difference)
        logger.info("resumed from version %s", version)

    def _stand_at(self, lineage: list[PolicyRef], go_to: Callable[[list[PolicyRef], LearnerSettings], Reached]) -> None:
        self._checkpointing.wait()
        reached = go_to(lineage, self._settings)
        with self._relearning.going_back(self._lineage):
            self._take_over(reached)
            self._lineage.resumed_from(lineage[-1], lineage[:-1])

    def _resume_from_weights(self, version: PolicyRef, why: Unlike) -> None:
        """Resume from published weights: they cannot be made again here, or the version is another learner's.

        The optimizer starts afresh; baseline, trust and influence are those published with the version. What the
        lineage has learned from is read from its manifests."""
        logger.warning("%s; going on from the published weights of %s, with a fresh optimizer", why, version)
        self._past.adopt(version, self._settings)
        self._afresh = True
        lineage, held_to = ancestry(self._store, version), self._reliving.held_by(version)
        with self._relearning.going_back(self._lineage):
            self._backlog.resume(applied_on(lineage, self._blobs))
            self._lineage.resumed_from(version, lineage[:-1])
        self._lineage.anchor = self._reliving.hold_again(held_to if held_to in lineage else None)
        self._checkpointing.hasten()
