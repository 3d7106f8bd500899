"""Learning again: what was learned since the first use of excluded turns is learned without them.

    orders ──► the first version of the lineage that used one ──► the version before: go back to it
    each update since, in order ──► the same batch less what is excluded, on the new line ──► the next version
    the last of them ──► a candidate, as any other version

Each update is what it would have been if the rest of its batch had been all of it: with its settings, with what was
released then, and with the corrections that the new line asks for. An update that held nothing else is left out. So
the weights are, to the bit, those of a learner that was never given these turns and whose batches held the same
others.

Every version on the way is published and journalled like any other, and is no candidate until the last: a learner
that is killed goes on where it stood, and does nothing twice."""

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from core.errors import ConfigError, WeightsError
from core.events import Completion
from core.ids import InferenceId, PolicyRef
from core.operations.exclusions import Exclusion
from core.ports import Store
from learner.batches.backlog import Backlog
from learner.relearning.exclusions import KnownExclusions
from learner.relearning.progress import Progress
from learner.reliving import Reliving, Unlike
from learner.sequences.scored import ScoredTurn
from learner.updates.update import UpdateResult
from learner.versions.journal import Plan
from learner.versions.manifest import Manifest, checked_then

logger = logging.getLogger(__name__)


class Relearner:
    """What a learner has to make again, and how far it has come."""

    def __init__(self, store: Store, reliving: Reliving, known: KnownExclusions, progress: Progress) -> None:
        self._store, self._reliving = store, reliving
        self._known, self._progress = known, progress
        self.plan: Plan | None = None
        """None when there is nothing to make again."""
        self.began_afresh = False
        """Whether the last update that was asked for began the optimizer afresh, also if it could not be made."""
        self._is_lost = False  # the last update that was asked for, if it is left out

    def obey(
        self, orders: Sequence[Exclusion], lineage: Sequence[PolicyRef], go_to: Callable[[PolicyRef], None]
    ) -> None:
        """Obey new orders: go back to the version of the lineage before the first that used what they exclude, if any.

        What was being made again for earlier orders stays to be made again, after what this adds. Where other weights
        trained then than do now, the learner stays where it is, and the orders are told to have failed."""
        numbers = tuple(each.exclusion_id for each in orders)
        self._known.obeyed = numbers[-1]
        uses = self._known.uses_on(lineage[-1]) if lineage else []
        first, unknown = next((n for n, use in enumerate(uses) if use.found), None), sum(use.unknown for use in uses)
        if first is None:
            if self.plan is None:
                self._progress.touches_nothing(numbers, unknown)
            else:  # what is still to be made again may hold some of it
                self.plan = msgspec.structs.replace(self.plan, orders=(*self.plan.orders, *numbers))
                self._progress.joined(numbers, self.plan, lineage[-1])
            return
        before, rest = self.plan, self.plan or Plan(orders=(), left=(), updates=0)
        again = tuple(use.policy.version for use in uses[first:])
        self.plan = Plan(
            orders=(*rest.orders, *numbers),
            left=(*again, *rest.left),
            updates=len(again) + len(rest.left),
            instead=rest.instead,
        )
        start = uses[first - 1].policy.version
        self._progress.begin(numbers, self.plan, again[0], start, unknown)
        logger.warning(
            "orders %s to exclude turns: going back to version %s, and making %d updates again without them",
            *(", ".join(map(str, numbers)), start, self.plan.updates),
        )
        try:
            go_to(start)
        except ConfigError as error:  # before anything was loaded
            self.plan = before
            self._fail(numbers, start, error)

    def _fail(self, numbers: Sequence[int], start: PolicyRef, error: ConfigError) -> None:
        why = f"version {start} cannot be gone back to, so what was learned stays, and nothing of it trains from now on"
        logger.error("orders %s to exclude turns: %s: %s", ", ".join(map(str, numbers)), why, error)
        self._progress.fail(numbers, f"{why}: {error}")
        self._known.read_again()

    def next_update(
        self, parent: PolicyRef, backlog: Backlog, *, afresh: bool
    ) -> tuple[Manifest, list[ScoredTurn], UpdateResult] | None:
        """Make the next update, upon `parent`; return its manifest without the result, its batch, and the result.

        None where it holds nothing else, or cannot be made again: see `leave_out`. Its version is still the one that
        it stands for."""
        assert self.plan is not None
        self.began_afresh, self._is_lost = False, True
        try:
            asked = self._asked(parent, backlog, afresh=afresh)
            if asked is None:
                return None
            self.began_afresh = asked.afresh
            made = self._reliving.live_again(asked)
        except (Unlike, WeightsError) as error:
            logger.error("the update of version %s is left out: %s", self.plan.left[0], error)
            return None
        return asked, *made

    def _asked(self, parent: PolicyRef, backlog: Backlog, *, afresh: bool) -> Manifest | None:
        assert self.plan is not None
        before = self._reliving.manifest_of(self.plan.left[0])
        turns = self._turns_of(before)
        kept = [
            (reward, age_s)
            for reward, age_s in zip(before.rewards, before.ages_s, strict=True)
            if reward.inference_id in turns and not self._known.covers(turns[reward.inference_id], reward)
        ]
        if not kept:
            self._is_lost = len(turns) < len({reward.inference_id for reward in before.rewards})
            return None
        ids = {reward.inference_id for reward, _ in kept}
        return msgspec.structs.replace(
            before,
            parent=parent,
            turns=(),
            rewards=tuple(reward for reward, _ in kept),
            ages_s=tuple(age_s for _, age_s in kept),
            applied={
                r.inference_id: backlog.applied[r.inference_id] for r, _ in kept if r.inference_id in backlog.applied
            },
            drops={"excluded": tuple(r.inference_id for r in before.rewards if r.inference_id not in ids)},
            held_to=None if before.held_to is None else self._instead_of(before.held_to),
            afresh=before.afresh or afresh,
            suites=checked_then(before, len(before.rewards) - len(kept)),
            again=before.version,
        )

    def made(self, version: PolicyRef) -> None:
        """Take the next update off the plan: `version` stands for it from now on."""
        self._take_off(version, "made_again")

    def leave_out(self, version: PolicyRef) -> None:
        """Take the next update off the plan, since `next_update` found that it held nothing else, or that it is lost.

        It is lost where it cannot be made again, also because its turns are gone from the store."""
        self._take_off(version, "lost" if self._is_lost else "emptied")

    def _take_off(self, version: PolicyRef, counted: Literal["made_again", "emptied", "lost"]) -> None:
        assert self.plan is not None
        done, *left = self.plan.left
        self.plan = msgspec.structs.replace(
            self.plan,
            left=tuple(left),
            instead={**self.plan.instead, done: version},
            **{counted: getattr(self.plan, counted) + 1},
        )

    def tell(self, version: PolicyRef) -> None:
        """Tell the store how far it has come, once `version` is published."""
        assert self.plan is not None
        self._progress.went_on(self.plan, version)

    def end(self, newest: PolicyRef) -> None:
        """End it: what was made becomes a candidate. Doing so again changes nothing."""
        assert self.plan is not None
        with self._store.work() as work:
            work.policies.offer(newest)
        self._progress.end(self.plan, newest)
        self.plan = None

    def give_up(self, why: str) -> None:
        """Give up what is left, because the line that it was made on is not gone on from."""
        if self.plan is not None:
            self._progress.end(self.plan, None, why)
            self.plan = None

    def _instead_of(self, version: PolicyRef) -> PolicyRef:
        """Return what stands for a version now, which may have been made again more than once."""
        assert self.plan is not None
        while version in self.plan.instead:
            version = self.plan.instead[version]
        return version

    def _turns_of(self, before: Manifest) -> dict[InferenceId, Completion]:
        with self._store.look() as view:
            return view.turns.get_many([reward.inference_id for reward in before.rewards])
