"""Turns with all that is known of them: what a selection asks about, and what is exported."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from core.events import Completion, Outcome, Reward
from core.ids import InferenceId
from core.store.work import View
from scoring.rewards.amendments import standing

_PART = 500  # turns of one query


@dataclass(frozen=True)
class KnownTurn:
    """A turn, the last revision of its reward (None: it has none), and the outcomes that stand, its session's too."""

    turn: Completion
    reward: Reward | None
    heard: tuple[Outcome, ...]

    @property
    def inference_id(self) -> InferenceId:
        return self.turn.inference_id


def all_known(view: View, inner: View) -> Iterator[KnownTurn]:
    """Iterate over all turns of a store in the order of their ids, which is that of time.

    `inner` is a second view of it, since the first one is in the middle of a query."""
    turns = view.turns.in_order()
    while part := list(islice(turns, _PART)):
        yield from known(inner, part)


def these_known(view: View, inference_ids: Collection[InferenceId]) -> Iterator[KnownTurn]:
    """Iterate over these turns in the order of their ids; those that the store does not have are left out."""
    wanted = iter(sorted(inference_ids))
    while part := list(islice(wanted, _PART)):
        found = view.turns.get_many(part)
        yield from known(view, [found[name] for name in part if name in found])


def known(view: View, turns: Sequence[Completion]) -> Iterator[KnownTurn]:
    ids = [turn.inference_id for turn in turns]
    last = {reward.inference_id: reward for reward in view.rewards.of_turns(ids)}
    own: dict[InferenceId | None, list[Outcome]] = {}
    for outcome in view.outcomes.of_turns(ids):
        own.setdefault(outcome.inference_id, []).append(outcome)
    sessions = {(turn.namespace, turn.session_id) for turn in turns}
    general = {each: [o for o in view.outcomes.of_session(*each) if o.inference_id is None] for each in sessions}
    for turn in turns:
        heard = [*own.get(turn.inference_id, ()), *general[turn.namespace, turn.session_id]]
        stand = tuple(each.outcome for each in standing(heard))
        yield KnownTurn(turn, last.get(turn.inference_id), stand)
