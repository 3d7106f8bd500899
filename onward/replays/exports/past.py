"""The chosen turns of a past with their latest rewards, session by session.

They are read once from log and archive into a store on disk: memory holds a session at a time, whatever the past is."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.progress import Progress

from core.events import Completion, Outcome, Reward, Topic
from core.ids import InferenceId, Namespace
from core.ports import Record, Store
from core.store.turns import first_id
from onward.replays.exports.choice import TurnChoice
from onward.replays.exports.outcomes import are_said, outcomes_of
from onward.replays.history import open_history, watched
from onward.wiring.foundation import Foundation

_AT_ONCE = 200  # turns of one query


@dataclass(frozen=True)
class Logged:
    """A turn with its latest reward; None where it has none yet."""

    turn: Completion
    reward: Reward | None


class ChosenPast:
    """What of a directory's past was chosen, in `store`, which is empty at first."""

    def __init__(self, source: Foundation, store: Store, choice: TurnChoice) -> None:
        self._source, self._store, self._choice = source, store, choice
        self._late: set[InferenceId] = set()
        self._gone: set[InferenceId] = set()
        self.missing = 0
        """Records that are neither in the log nor in the archive any more."""

    @property
    def gone(self) -> int:
        """The number of chosen turns that have a reward and were deleted.

        They are not counted where a choice of versions, tags or outcomes leaves it open whether they were chosen."""
        return len(self._gone)

    def read(self, progress: Progress) -> None:
        for topic, take in ((Topic.TURNS, self._take_turns), (Topic.REWARDS, self._take_rewards)):
            history = open_history(self._source, topic, self._choice.begin, None, self._choice.namespace)
            for records in watched(history, progress, topic.value):
                take(records)
            self.missing += history.missing

    def sessions(self) -> Iterator[list[Logged]]:
        """Yield the chosen turns of each session in their order; the sessions come in the order of their names."""
        with self._store.look() as view:
            for namespace, name in view.turns.sessions():
                with self._store.look() as inner:
                    turns = inner.turns.of_session(namespace, name)
                chosen = self._as_outcomes_choose(turns)
                if chosen:
                    yield self._with_rewards(chosen)

    def turns(self, ids: Sequence[InferenceId]) -> Iterator[Logged]:
        """Yield the given turns in that order."""
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            with self._store.look() as view:
                found = view.turns.get_many(part)
            yield from self._with_rewards([found[each] for each in part])

    def outcomes(self, session: Sequence[Logged]) -> dict[InferenceId, list[Outcome]]:
        """Return what stands of what was said of each of a session's turns.

        The log has what was reported, and the directory's store also what the scorer concluded."""
        return outcomes_of([each.turn for each in session], [self._source.store, self._store])

    def _as_outcomes_choose(self, turns: list[Completion]) -> list[Completion]:
        asked = self._choice.outcomes
        if not asked:
            return turns
        said = outcomes_of(turns, [self._source.store, self._store])
        return [turn for turn in turns if are_said(asked, said.get(turn.inference_id, ()))]

    def _with_rewards(self, turns: Sequence[Completion]) -> list[Logged]:
        latest: dict[InferenceId, Reward] = {}
        for start in range(0, len(turns), _AT_ONCE):
            with self._store.look() as view:
                part = view.rewards.of_turns([turn.inference_id for turn in turns[start : start + _AT_ONCE]])
            for reward in part:
                known = latest.get(reward.inference_id)
                if known is None or reward.revision >= known.revision:
                    latest[reward.inference_id] = reward
        return [Logged(turn, latest.get(turn.inference_id)) for turn in turns]

    def _take_turns(self, records: Sequence[Record]) -> None:
        turns = [record.event for record in records if isinstance(record.event, Completion) and self._is_timely(record)]
        with self._store.work() as work:
            work.turns.put([turn for turn in turns if self._choice.wants(turn)])
            work.outcomes.put([record.event for record in records if isinstance(record.event, Outcome)])

    def _is_timely(self, record: Record) -> bool:
        """Return whether a turn was logged before the end; remember one that was begun before and logged after it."""
        end, turn = self._choice.end, record.event
        if end is None or record.appended_at < end:
            return True
        if isinstance(turn, Completion) and turn.inference_id < first_id(end):
            self._late.add(turn.inference_id)
        return False

    def _take_rewards(self, records: Sequence[Record]) -> None:
        by_namespace: defaultdict[Namespace, list[Reward]] = defaultdict(list)
        for record in records:
            if isinstance(record.event, Reward) and self._choice.workload in (None, record.event.workload):
                by_namespace[record.event.namespace].append(record.event)
        with self._store.work() as work:
            known: list[Reward] = []
            for namespace, rewards in by_namespace.items():
                here = work.turns.which_of(namespace, {reward.inference_id for reward in rewards})
                known += [reward for reward in rewards if reward.inference_id in here]
                self._note_gone({reward.inference_id for reward in rewards} - here)
            work.rewards.put([(0, reward) for reward in known])

    def _note_gone(self, ids: set[InferenceId]) -> None:
        """Note turns that are not there; an id begins with the time at which it was made."""
        if not self._choice.is_told_by_rewards:
            return
        begin, end = self._choice.begin, self._choice.end
        for each in ids - self._late:
            if (begin is None or each >= first_id(begin)) and (end is None or each < first_id(end)):
                self._gone.add(each)
