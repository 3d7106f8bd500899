"""Users that a replay keeps its candidate from, so that what they said can judge it."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from core.events import Completion, Reward
from core.ids import InferenceId
from core.ports import WeightsRef
from core.settings import LearnerSettings
from learner.batches.backlog import Bounds, refusal
from learner.model.policy_model import PolicyModel
from learner.off_policy.estimators import OffPolicy, off_policy
from learner.off_policy.log_ratios import logged_turns
from learner.off_policy.told import cannot_say, told
from learner.sequences.masks import MasksOfTurns
from learner.sequences.scored import ScoredTurn
from learner.versions.loading import load_version
from onward.replays.estimates.turns_kept import interval, keep
from onward.wiring.foundation import Foundation

_PART = 500  # of one query
_WHOLE = 1 << 64


def split(rewards: Sequence[Reward], share: float, target: Foundation) -> tuple[list[Reward], list[Reward]]:
    """(to learn from, held out), by a hash of who spoke: a user's turns, or a session's of nobody, are on one side."""
    if not share:
        return list(rewards), []
    found = _turns(target, {reward.inference_id for reward in rewards})
    held = {name for name, turn in found.items() if is_held_out(turn, share)}
    learned = [reward for reward in rewards if reward.inference_id not in held]
    return learned, [reward for reward in rewards if reward.inference_id in held]


def judge(target: Foundation, model: Path, held: Iterable[Reward], settings: LearnerSettings) -> dict[str, Any]:
    """Estimate the newest version's rewards on the last revisions of held-out turns, with 95 % intervals.

    `says` is what follows from them, and what does not, in words. The turns that judge it are kept in the replay's
    directory, a row each."""
    revised = {reward.inference_id: reward for reward in held}
    last = {name: reward for name, reward in revised.items() if not reward.void}
    found = _turns(target, set(last))
    fits = Bounds(masks=MasksOfTurns(model))
    batch = [ScoredTurn(found[name], reward) for name, reward in last.items() if not refusal(found[name], reward, fits)]
    result: dict[str, Any] = {"turns": len(last), "unusable": len(last) - len(batch)}
    if not batch:
        why = "no turn that could be learned from"
        return result | {"refused": why, "says": cannot_say(why), "values": {}, "gains": {}}
    candidate = _candidate(target, model, settings.device)
    logged = logged_turns(candidate, batch, settings.compute.micro_batch_tokens, settings.device)
    keep([scored.inference_id for scored in batch], logged, target.layout.root)
    return result | figures(off_policy(logged))


def is_held_out(turn: Completion, share: float) -> bool:
    """Return whether a replay that holds out this share of the users keeps its candidate from the turn."""
    return _place(turn) < share


def _place(turn: Completion) -> float:
    """Return a turn's pseudo-random place in [0, 1)."""
    who = f"{turn.namespace}\0{turn.user_id or turn.session_id}"
    return int.from_bytes(hashlib.blake2b(who.encode(), digest_size=8).digest()) / _WHOLE


def _turns(target: Foundation, ids: set[InferenceId]) -> dict[InferenceId, Completion]:
    wanted, found = sorted(ids), dict[InferenceId, Completion]()
    with target.store.look() as view:
        for start in range(0, len(wanted), _PART):
            found |= view.turns.get_many(wanted[start : start + _PART])
    return found


def _candidate(target: Foundation, model: Path, device: str) -> PolicyModel:
    with target.store.look() as view:
        policy, _ = view.policies.newest(1)[0]
    ref = WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights, parent=policy.parent)
    candidate = PolicyModel(model, device)
    load_version(candidate, target.weights.open(ref))
    return candidate


def figures(result: OffPolicy) -> dict[str, Any]:
    """Return the result of an evaluation for a report in JSON."""
    return {
        "effective_turns": result.overlap.effective,
        "refused": result.overlap.refused,
        "says": told(result),
        "bends": result.bends,
        "values": {name: interval(estimate) for name, estimate in result.values.items()},
        "gains": {name: interval(estimate) for name, estimate in result.gains.items()},
    }
