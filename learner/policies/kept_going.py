"""A policy's learner that is made again after an error of its own, while the others go on."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from core.ids import InferenceId, Namespace, PolicyName
from core.records.handling import attempt, words_of
from core.stages.backoff import Backoff
from learner import skipped
from learner.policies.means import Means
from learner.policies.policy_learner import PolicyLearner
from learner.sequences.scored import ScoredTurn

_FIRST_S: Final = 0.5
_MOST_S: Final = 60.0
T = TypeVar("T")
Failed = frozenset[tuple[InferenceId, int]]
logger = logging.getLogger(__name__)


class KeptGoing:
    """One policy's learner, kept going.

    What an update left half done is gone with it: the next one stands where the journal says. A batch that makes its
    update fail again and again is left out. Errors that say the machine, the log or the store is at fault are raised,
    and all policies wait. So is every error where there is no other policy to protect, or where other processes train
    with this one, which would not know of it."""

    def __init__(
        self,
        policy: PolicyName,
        means: Means,
        directory: Path,
        namespaces: Sequence[Namespace],
        *,
        is_alone: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy, self._means, self._directory, self._namespaces = policy, means, directory, namespaces
        self._raises_all = is_alone or means.states.ranks.count > 1
        self._monotonic = monotonic
        self._backoff = Backoff(_FIRST_S, _MOST_S)
        self._again_s = monotonic()
        self._times = Counter[Failed]()
        self._never: set[tuple[InferenceId, int]] = set()
        self.standing: PolicyLearner | None = None
        """None from an error until it is made again."""
        self.stand_up()

    def stand_up(self) -> bool:
        """Make the learner again if it fell, and enough time has passed since; return whether that was done."""
        if self.standing is not None or self._monotonic() < self._again_s:
            return False
        self._trying(self._make)
        return self.standing is not None

    def do(self, act: Callable[[PolicyLearner], T]) -> T | None:
        """Let the learner do something; None where it does not stand, or fell of it."""
        learner = self.standing
        return None if learner is None else self._trying(lambda: act(learner))

    def work(self) -> float:
        """Let the learner work; return how much that was."""
        done = self.do(PolicyLearner.work)
        if done:
            self._backoff.is_over()
        return done or 0.0

    def _make(self) -> None:
        made = PolicyLearner(self._policy, self._means, self._directory)
        made.never_train(self._never)
        self.standing = made

    def _trying(self, act: Callable[[], T]) -> T | None:
        if self._raises_all:
            return act()
        found: list[T] = []
        failure = attempt(lambda: found.append(act()))
        if failure is None:
            return found[0]
        self._fall(failure)
        return None

    def _fall(self, failure: Exception) -> None:
        fallen, self.standing = self.standing, None
        batch: Sequence[ScoredTurn] = ()
        if fallen is not None:
            fallen.abandon()
            batch = fallen.in_hand
        wait_s = self._backoff.wait_s()
        self._again_s = self._monotonic() + wait_s
        logger.error("policy %s stands still for %.1f s", self._policy, wait_s, exc_info=failure)
        meaning = f"the learner of policy {self._policy} failed: {words_of(failure)}"
        if batch:
            failed = frozenset((scored.inference_id, scored.reward.revision) for scored in batch)
            self._times[failed] += 1
            if self._times[failed] >= self._means.record_attempts:
                self._never |= failed
                place = skipped.keep(self._directory / "skipped", batch, failure)
                logger.error("its update of %d turns is left out, they are in %s", len(batch), place)
        now = self._means.clock.now()
        skipped.raise_failure(self._means.store, self._policy, self._namespaces, batch, meaning, now)
