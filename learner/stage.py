"""The learner: the stage that turns rewards into policy versions, of all policies that there are."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from core.errors import Fenced, Unavailable
from core.events import Reward, Topic
from core.ids import BASE, PolicyName, PolicyRef
from core.ports import Blobs, Clock, EventLog, Record, Store, Weights
from core.records.handling import Culprits
from core.records.withdrawals import Withdrawals
from core.settings import LearnerSettings
from core.settings.stages import RECORD_ATTEMPTS
from core.stages.sources import OwnRecords
from core.stages.stage import Stage
from learner.directory_lock import DirectoryLock
from learner.model.ranks import ALONE, Ranks
from learner.policies.kept_going import KeptGoing
from learner.policies.means import Means
from learner.policies.policy_learner import PolicyLearner
from learner.policies.roster import BASE_ALONE, Roster
from learner.policies.traces import VersionTraces
from learner.policies.turns import FairTurns
from learner.rank_group import states_of_all
from learner.relearning.exclusions import Orders
from learner.relearning.forgetting import Forgetting
from learner.sequences.kept_out import KeptOut, SuiteSolutions
from learner.sequences.masks import masks_of

_IDLE_S = 5.0  # how often one that has nothing to learn from looks at the time
_TIMELY_S = 0.2  # the same while it has something
_POLICIES: Final = "policies"


class Learner(Stage):
    """The learner; not thread-safe: one process, one thread.

    Each policy has a learner of its own, which knows nothing of the others; this one reads the log for all of them,
    and lets them take turns by weight. After a restart it reads on from where the first of them stood. Raises
    ConfigError when another learner works in the directory."""

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
        suites: Sequence[SuiteSolutions] = (),
        tokenizer_digest: str | None = None,
        ranks: Ranks = ALONE,
        record_attempts: int = RECORD_ATTEMPTS,
        roster: Roster = BASE_ALONE,
        withdrawals: Withdrawals | None = None,
    ) -> None:
        """Make a learner. Turns that resemble a solution of `suites`, or have another tokenizer, do not train.

        `ranks`: the processes that follow this one. `roster`: the policies, and what each learns from.
        `withdrawals` drops versions that were erased from this host's caches."""
        super().__init__()
        self._withdrawals = withdrawals
        self._roster, self._turns = roster, FairTurns(roster.weights)
        self._directory, self._clock = directory, clock
        self._orders, self._forgetting = Orders(store, clock, roster.weights), Forgetting(store, blobs)
        with ExitStack() as held:  # one that cannot be made, since something is unavailable, holds nothing
            held.callback(DirectoryLock(directory).release)
            self._reader = log.reader([Topic.REWARDS, Topic.RELEASES])
            held.callback(self._reader.close)
            culprits = Culprits("learner", log, store, clock, record_attempts)
            self.source = OwnRecords(self._reader, culprits)
            means = Means(
                *(log, store, weights, blobs, settings, clock),
                states_of_all(model, ranks),
                KeptOut(suites, model),
                masks_of(model),
                *(self._orders, culprits, tokenizer_digest, record_attempts),
                traces=VersionTraces(clock),
                begins={source: self._reader.position(source) for source in self._reader.assignment()},
            )
            self._learners = {
                name: KeptGoing(
                    name,
                    means,
                    directory_of(directory, name),
                    roster.namespaces_of(name),
                    is_alone=len(roster.weights) == 1,
                )
                for name in roster.weights
            }
            self._read_again()
            self._held = held.pop_all()

    @property
    def base(self) -> PolicyLearner:
        """The base policy's learner, which stands."""
        return self.of(BASE)

    def of(self, policy: PolicyName) -> PolicyLearner:
        """Return a policy's learner, which stands."""
        learner = self._learners[policy].standing
        assert learner is not None, f"policy {policy} stands still"
        return learner

    def handle(self, records: Sequence[Record]) -> None:
        """Let each policy take what is its own."""
        standing = self._standing()
        for each in standing:
            each.pace.turn_to("reading")
        for record in records:
            event = record.event
            learn = self._roster.learners_of(event.namespace, event.workload) if isinstance(event, Reward) else ()
            for each in standing:
                each.take(record, learns=each.policy in learn)

    def tick(self) -> float:
        """Let one policy train for which a batch is due, and publish."""
        self._orders.look()
        stood_up = [kept for kept in self._learners.values() if kept.stand_up()]
        if stood_up:
            self._read_again()
        for each in self._standing():
            each.pace.turn_to("reading")
        self._all_do(PolicyLearner.prepare)
        if not self._has_fallen:
            self._forgetting.obey(self._standing())
        self._forgetting.drop(self._directory / _POLICIES, self._learners, self._clock.now())
        if self._withdrawals is not None:
            self._withdrawals.look()
        has_worked = self._work()
        self._all_do(PolicyLearner.save)
        standing = self._standing()
        for each in standing:
            each.pace.turn_to("waiting")
        if has_worked or any(each.has_work and not each.lacks_turns for each in standing):
            return 0.0
        return _TIMELY_S if any(each.has_pending for each in standing) or self._has_fallen else _IDLE_S

    def recover(self, error: Unavailable | Fenced) -> None:
        """Raise `error`: an update may be half done, and another learner goes on from the journal."""
        raise error

    def close(self) -> None:
        """Let each policy write a last checkpoint, where it stands."""
        with self._held:
            for each in self._standing():
                each.close()

    @property
    def left_out(self) -> Counter[str]:
        """Turns that left a backlog without any update since this learner began, by reason."""
        return sum((each.left_out for each in self._standing()), Counter[str]())

    @property
    def newest(self) -> PolicyRef | None:
        """The base policy's newest version."""
        return self.base.newest

    # ------------------------------------------------------------------------------------------ policies

    def _standing(self) -> list[PolicyLearner]:
        return [kept.standing for kept in self._learners.values() if kept.standing is not None]

    @property
    def _has_fallen(self) -> bool:
        return any(kept.standing is None for kept in self._learners.values())

    def _all_do(self, do: Callable[[PolicyLearner], object]) -> None:
        for kept in self._learners.values():
            kept.do(do)

    def _work(self) -> bool:
        """Let the policy work whose turn it is; return whether any did."""
        due = {each.policy for each in self._standing() if each.has_work}
        while due:
            name = self._turns.next_of(due)
            done = self._learners[name].work()
            if done:
                self._turns.paid(name, done)
                return True
            due.discard(name)  # its turns are not all there yet
        return False

    def _read_again(self) -> None:
        """Read on from where the first of them stands; the others pass over what they have read."""
        standing = self._standing()
        for source in self._reader.assignment() if standing else ():
            self._reader.seek(source, min(each.offsets[source] for each in standing))
        for each in standing:
            each.read_again()


def directory_of(root: Path, policy: PolicyName) -> Path:
    """Return where in a learner's directory a policy has its journal and checkpoints: the base policy in itself."""
    return root if policy == BASE else root / _POLICIES / policy
