"""The learner of one policy: what is learned of its turns, version upon version."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from core.errors import CheckpointError
from core.events import PolicyVersion, Release, Reward, Topic
from core.ids import InferenceId, PolicyName, PolicyRef
from core.model.probes import get_probe
from core.operations.alarms import NOT_FINITE
from core.ports import Record
from learner import skipped
from learner.batches.backlog import Backlog, Bounds
from learner.batches.mixture import Mixture
from learner.checkpointing import Checkpointing
from learner.past import Past, Reached
from learner.policies.means import Means
from learner.rank_group import RankGroup, answers, memory_file
from learner.relearning.exclusions import KnownExclusions
from learner.relearning.progress import Progress
from learner.relearning.relearning import Relearner
from learner.reliving import Reliving, Unlike
from learner.sequences.hinted import heeded
from learner.sequences.kept_out import EVAL_SOLUTION
from learner.sequences.scored import ScoredTurn
from learner.timing import DISK_BYTES, Pace
from learner.updates.update import NonFiniteLoss, UpdateResult, update
from learner.versions import manifest
from learner.versions.checkpoint import Checkpoints
from learner.versions.journal import Entry, Journal
from learner.versions.lineage import Lineage
from learner.versions.provenance import ancestry, applied_on
from learner.versions.publish import publish
from learner.versions.version_files import room_for_files, write_files
from learner.waiting import WaitingTurns

_RELEARNED: Final = 1.0  # what an update that is made again costs of a policy's turns
logger = logging.getLogger(__name__)


class PolicyLearner:
    """The learner of one policy; not thread-safe.

    It goes on from its journal, which says how far it read the log, and makes the weights of its newest version again
    from the last checkpoint. What becomes of other policies is not its concern."""

    def __init__(self, policy: PolicyName, means: Means, directory: Path) -> None:
        """Make the learner of a policy, whose journal and checkpoints are in `directory`."""
        self.policy, self._means, self.directory = policy, means, directory
        self._log, self._store, self._weights, self._blobs = means.log, means.store, means.weights, means.blobs
        self._settings, self._clock = means.settings, means.clock
        self._kept_out = means.kept_out.counting_anew()
        self._journal = Journal(directory)
        self.backlog = Backlog(Mixture(means.settings.mixture))
        self._lineage = Lineage(policy=policy)
        self.pace = Pace()
        self._is_alarmed = True  # maybe, by a learner before this one
        self._afresh = False  # the optimizer
        self._is_whole = False  # no update or change of versions is half done
        self._rank_group = RankGroup(means.states, means.settings, policy)
        self._reliving = Reliving(lambda: self._rank_group, means.store, means.weights, means.blobs)
        checkpoints = Checkpoints(directory)
        self._past = Past(self._rank_group, self._reliving, checkpoints, directory)
        self._checkpointing = Checkpointing(checkpoints, self._rank_group, self._lineage, means.settings.checkpoints)
        self._excluded = KnownExclusions(means.orders, means.store, means.blobs, policy)
        progress = Progress(means.store, means.clock, policy)
        self._relearner = Relearner(means.store, self._reliving, self._excluded, progress)
        self._waiting = self._made_waiting()
        self.offsets = dict(means.begins)
        """How far it has read the log."""
        self._begun_at = dict(self.offsets)
        self.in_hand: list[ScoredTurn] = []
        """The batch whose update is being made."""
        self._resume()
        self.read_again()
        self._is_whole = True

    def _made_waiting(self) -> WaitingTurns:
        means, group = self._means, self._rank_group
        return WaitingTurns(
            self.backlog,
            Bounds(means.tokenizer_digest, group.context_length, group.vocabulary, means.masks),
            *(self._kept_out, means.masks, self._excluded.covers, means.log, means.store, means.culprits),
            *(means.settings, means.clock),
            means.record_attempts,
        )

    # ------------------------------------------------------------------------------------------ reading

    def read_again(self) -> None:
        """Get ready for a reader that was put back: what was read before is passed over when it comes again."""
        self._begun_at = dict(self.offsets)

    def take(self, record: Record, *, learns: bool) -> None:
        """Admit what was rewarded, if this policy learns from it, and follow what was released of its versions."""
        if record.offset < self._begun_at[record.source]:
            return
        self.offsets[record.source] = record.offset + 1
        match record.event:
            case Reward() as reward if learns:
                self._waiting.admit(reward)
            case Release() as release:
                self._lineage.follow(release)
                self._means.traces.follow(release)

    # ------------------------------------------------------------------------------------------ rounds

    def prepare(self) -> None:
        """Obey new orders, and stand where the releases ask for."""
        self._is_whole = False
        self._follow_exclusions()
        self._follow_releases()
        if self._relearner.plan is None:
            self._move_anchor()
        self._is_whole = True

    @property
    def has_work(self) -> bool:
        """Whether there is an update to make now, as far as is known before its turns are looked up."""
        return self._relearner.plan is not None or (self._waiting.is_due and self._may_train())

    @property
    def lacks_turns(self) -> bool:
        """Whether its next update waits for turns that the writer has not stored yet."""
        return self._relearner.plan is None and self._waiting.lacks_turns

    @property
    def has_pending(self) -> bool:
        return bool(self.backlog.pending)

    def work(self) -> float:
        """Make the next update, if it can be made, and publish its version; return what part of a full one it was."""
        self._is_whole = False
        if self._relearner.plan is not None:
            self._learn_again()
            done = _RELEARNED
        else:
            done = self._train() / self._settings.batch.turns if self._may_train() else 0.0
        self._is_whole = True
        return done

    def save(self) -> None:
        """Begin a checkpoint, or complete one, when that is due."""
        with self.pace.doing("saving"):
            if self._checkpointing.is_due():
                self._checkpoint()

    def close(self) -> None:
        """Write a last checkpoint, unless an error left the weights in the middle of something."""
        if self._is_whole and self._checkpointing.is_missing():
            self._checkpoint()
        self._checkpointing.wait()

    def abandon(self) -> None:
        """Write nothing more, after an error that may have left something half done."""
        self._checkpointing.wait()

    def never_train(self, rewards: Iterable[tuple[InferenceId, int]]) -> None:
        """Leave out these revisions of turns, whose updates fail each time."""
        self._waiting.failed |= set(rewards)

    @property
    def lineage(self) -> Sequence[PolicyRef]:
        return self._lineage.versions

    @property
    def is_learning_again(self) -> bool:
        return self._relearner.plan is not None

    @property
    def left_out(self) -> Counter[str]:
        """Turns that left the backlog without any update since this learner began, by reason."""
        return self._waiting.left_out

    @property
    def newest(self) -> PolicyRef | None:
        return self._lineage.newest

    # ------------------------------------------------------------------------------------------ training

    def _may_train(self) -> bool:
        return self._lineage.may_train(self._settings.checkpoints.max_lead)

    def _train(self) -> int:
        """Train if a batch is due; return the number of its turns."""
        if not (batch := self._waiting.due_batch()):
            return 0
        self.in_hand = batch
        try:
            with self.pace.doing("updating"):
                result = self._rank_group.do(update, batch, self._settings, self._lineage.released)
        except NonFiniteLoss as error:
            self.in_hand = []
            self._skip(batch, error)
            return len(batch)
        self.in_hand = []
        if self._is_alarmed:
            self._is_alarmed = skipped.close_acknowledged(self._store, self.policy, self._clock.now())
        with self.pace.doing("publishing"):
            policy = self._publish(self._keep(self._asked(batch), batch, result))
            self._journal.prune()
        self._means.traces.made(policy, batch)
        return len(batch)

    def _learn_again(self) -> None:
        """Make the next update of the plan again, or end it."""
        line, again = self._lineage, self._relearner
        assert again.plan is not None
        assert line.newest is not None
        if not again.plan.left:
            again.end(line.newest)
            return
        with self.pace.doing("updating"):
            done = again.next_update(line.newest, self.backlog, afresh=self._afresh)
        if done is None:
            self._afresh = self._afresh or again.began_afresh
            again.leave_out(line.newest)
        else:
            with self.pace.doing("publishing"):
                self._publish(self._keep(*done))
                self._journal.prune()
        again.tell(line.newest)

    def _skip(self, batch: Sequence[ScoredTurn], error: NonFiniteLoss) -> None:
        """Skip an update: its turns never train, and are kept whole for an operator, who is alerted."""
        self.backlog.remove([scored.reward for scored in batch])
        for scored in batch:
            self._waiting.drop(scored.inference_id, NOT_FINITE)
        place = skipped.keep(self.directory / "skipped", batch, error)
        logger.error("%s; its %d turns are in %s", error, len(batch), place)
        skipped.raise_alarm(self._store, self.policy, batch, self._clock.now())
        self._is_alarmed = True

    # ------------------------------------------------------------------------------------------ versions

    def _asked(self, batch: Sequence[ScoredTurn]) -> manifest.Manifest:
        """Return the manifest of an update that was made of a batch, without its result."""
        line, drops = self._lineage, self._waiting.take_drops()
        assert line.newest is not None, "training starts from a released version"
        suites = self._kept_out.take(len(batch) + len(drops.get(EVAL_SOLUTION, ())))
        made = manifest.asked(line.newest, self._settings, batch, drops, suites)
        return msgspec.structs.replace(made, released=tuple(line.released), held_to=line.anchor, afresh=self._afresh)

    def _keep(self, asked: manifest.Manifest, batch: Sequence[ScoredTurn], result: UpdateResult) -> Entry:
        """Write a journal entry with everything that publishing needs, before any of it is published."""
        with self._store.work() as work:
            version = work.policies.allocate(self._clock.now(), self._lineage.policy)
        made = msgspec.structs.replace(asked, version=version, turns=result.records)
        self.backlog.enter(batch, made.turns, version, manifest.settings_of(made))
        self.backlog.take_off(batch)
        self._afresh = False
        self._lineage.extend(version)
        self._lineage.anchor = made.held_to
        if made.again is not None:
            self._relearner.made(version)
        name = manifest.name_of(self.policy, batch, self._reliving.published(made.parent))
        draft = manifest.draft(made, batch, self._figures(result), self.offsets, self._clock.now(), name)
        entry = Entry(
            policy=msgspec.structs.replace(draft, exclusions=self._excluded.obeyed),
            manifest=made,
            lineage=tuple(self._lineage.versions),
            live=self._lineage.live,
            refused=tuple(sorted(self._lineage.refused)),
            offsets={str(source): offset for source, offset in self.offsets.items()},
            pending=tuple(self.backlog.pending.values()),
            exclusions=self._excluded.obeyed,
            plan=self._relearner.plan,
        )
        self._journal.write(entry)
        return entry

    def _figures(self, result: UpdateResult) -> dict[str, float]:
        peak = self._settings.compute.peak_tflops
        tokens, positions = result.metrics["tokens"], result.metrics["positions"]
        peak_of_all = peak and peak * self._rank_group.num_processes
        pace = self.pace.take(tokens, positions, self._rank_group.flops_of_a_position, peak_of_all)
        return result.metrics | pace | {DISK_BYTES: float(self._checkpointing.disk_bytes)}

    def _publish(self, entry: Entry) -> PolicyVersion:
        """Publish the version that the weights are. After a crash they are the same, and so is a probe made again."""
        probe = self._rank_group.do(answers, get_probe(self._blobs, entry.lineage[0]))
        made, memory = manifest.encode(entry.manifest), self._rank_group.do(memory_file)
        with room_for_files(self.directory) as room:
            files = self._rank_group.do(write_files, room, self._settings.compute.published)
            return publish(
                *(entry.policy, files, made, memory, probe, self._store, self._log, self._weights, self._blobs),
                offered=entry.plan is None,
            )

    def _checkpoint(self) -> None:
        self._checkpointing.begin(self._past.base, self.backlog.applied)

    # ------------------------------------------------------------------------------------------ resuming

    def _resume(self) -> None:
        """Go on from the newest entry whose version is published, or can be made again and published."""
        for entry in self._journal.newest_first():
            if isinstance(entry, CheckpointError):
                logger.error("%s; going on from the version before", entry)
            elif self._goes_on_from(entry):
                break

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
            self._publish(entry)
        else:  # perhaps without being told
            self._log.append_blocking(Topic.POLICIES, [published])
        return True

    def _stand_where(self, entry: Entry) -> None:
        """Stand in the log, and towards releases, where the learner stood that wrote the entry."""
        self._lineage.live, self._lineage.refused = entry.live, set(entry.refused)
        self._lineage.released = list(entry.manifest.released)
        words = self._settings.words
        self.backlog.pending = {each.inference_id: heeded(each, words) for each in entry.pending}
        self.backlog.mixture.note([*entry.manifest.rewards, *entry.pending])
        self._excluded.obeyed, self._relearner.plan = entry.exclusions, entry.plan
        known = {str(source): source for source in self.offsets}
        self.offsets |= {known[name]: offset for name, offset in entry.offsets.items()}

    def _take_over(self, reached: Reached) -> None:
        """Take over what belongs to the weights that were loaded or made again."""
        self._afresh = False
        self.backlog.resume(reached.applied)
        self._lineage.anchor = self._reliving.held_to
        if reached.num_updates:
            self._checkpointing.hasten()

    def _move_anchor(self) -> None:
        version = self._lineage.due_anchor(self._settings.objective.kl.anchor_versions)
        if version is not None:
            self._hold_to(version)
            logger.info("the KL term holds to version %s from now on", version)

    def _hold_to(self, version: PolicyRef | None) -> None:
        self._reliving.hold_to(version)
        self._lineage.anchor = version

    def _follow_exclusions(self) -> None:
        """Go back to before the first use of what new orders exclude."""
        orders = self._excluded.take()
        if orders and self._lineage.versions:
            self._relearner.obey(orders, self._lineage.versions, self._go_to)

    def _follow_releases(self) -> None:
        """Resume from what is to be built upon, when the newest version is not."""
        line = self._lineage
        is_elsewhere = bool(line.versions) and line.live is not None and line.live not in line.versions
        line.trunk = self._excluded.newest_sound(line.live) if is_elsewhere and line.live else line.live
        version = line.must_resume_from()
        if version is not None:
            self._relearner.give_up(f"version {version} is gone on from instead")
            self._go_to(version)

    def _go_to(self, version: PolicyRef) -> None:
        self._checkpointing.wait()
        lineage = ancestry(self._store, version)
        try:
            reached = self._past.go_to(lineage, self._settings)
        except Unlike as difference:
            self._resume_from_weights(version, difference)
        else:
            self._take_over(reached)
            self._lineage.resumed_from(version, lineage[:-1])
        logger.info("resumed from version %s", version)

    def _resume_from_weights(self, version: PolicyRef, why: Unlike) -> None:
        """Resume from published weights: they cannot be made again here, or the version is another learner's.

        The optimizer starts afresh; baseline, trust and influence are those published with the version. What the
        lineage has learned from is read from its manifests."""
        logger.warning("%s; going on from the published weights of %s, with a fresh optimizer", why, version)
        self._past.adopt(version, self._settings)
        self._afresh = True
        lineage, held_to = ancestry(self._store, version), self._reliving.held_by(version)
        self.backlog.resume(applied_on(lineage, self._blobs))
        self._lineage.resumed_from(version, lineage[:-1])
        self._lineage.anchor = self._reliving.hold_again(held_to if held_to in lineage else None)
        self._checkpointing.hasten()
