"""Whether a session may be used for a case as things stand now: by its consents, exclusions and rewards."""

from collections.abc import Collection, Sequence
from typing import Final

from core.events import Completion, Reward
from core.ids import Namespace, SessionId
from core.operations.exclusions import is_excluded
from core.ports import Store
from onward.wiring.foundation import Foundation
from serving.evals.cases import Draft
from serving.evals.drafts.deciding import Unusable

_WORDS: Final = {
    "turns_missing": "turns of its session are gone",
    "not_stored": "a turn of its session may not be stored",
    "no_consent": "its session may not be learned from",
    "excluded": "its session is excluded from learning",
    "void": "what was said of it was taken back",
}


def why_unusable(store: Store, turns: Sequence[Completion], rewards: Collection[Reward]) -> str | None:
    """Return why a session may not be used, by what the service's store says of its turns; None where it may.

    Each turn counts, since later ones quote it. `rewards`: the latest of each turn that has one."""
    with store.look() as view:
        heeded = view.consents.heeded({turn.inference_id: turn for turn in turns})
        ordered = view.exclusions.after()
    by_turn = {reward.inference_id: reward for reward in rewards}
    if any(turn.unstored is not None for turn in turns):
        return "not_stored"
    if not all(turn.learn for turn in heeded.values()):
        return "no_consent"
    if any(is_excluded(turn, by_turn.get(turn.inference_id), ordered) for turn in turns):
        return "excluded"
    if any(reward.void for reward in by_turn.values()):
        return "void"
    return None if _is_whole(turns) else "turns_missing"


def _is_whole(turns: Sequence[Completion]) -> bool:
    """Return whether no turn is missing: each that another one continues is there, and each number up to the last."""
    ids, numbers = {turn.inference_id for turn in turns}, {turn.turn_index for turn in turns}
    return len(numbers) == max(numbers, default=-1) + 1 > 0 and {turn.parent_id for turn in turns} <= {None, *ids}


def unusable_in(foundation: Foundation) -> Unusable:
    """Return a function that says why the session of a draft may not be used now, or None."""

    def why(draft: Draft) -> str | None:
        with foundation.store.look() as view:
            turns = view.turns.of_session(Namespace(draft.reuse.namespace), SessionId(draft.source.session))
            found = view.rewards.of_turns([turn.inference_id for turn in turns])
        if draft.source.turn not in {turn.inference_id for turn in turns}:
            return _WORDS["turns_missing"]
        latest: dict[str, Reward] = {}
        for reward in found:
            known = latest.get(reward.inference_id)
            if known is None or reward.revision >= known.revision:
                latest[reward.inference_id] = reward
        return _WORDS.get(why_unusable(foundation.store, turns, latest.values()) or "")

    return why
