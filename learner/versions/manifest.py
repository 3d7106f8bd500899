"""Manifests: which turns and revisions made a version, so that training can be checked and done again."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec
import zstandard
from msgspec.structs import replace

from core import codec
from core.events import Completion, PolicyVersion, Reward, TextEdit
from core.ids import BASE, InferenceId, PolicyName, PolicyRef
from core.ports import TopicPartition
from core.settings import LearnerSettings
from core.settings.names import under_their_names
from learner.sequences.kept_out import SuiteCheck
from learner.sequences.scored import Applied, DemonstrationRecord, ScoredTurn, TurnRecord

TRAINED, UNTRAINED = "reward_mass_", "untrained_mass_"
"""Prefixes of figures: absolute advantage, by the age of its outcome."""
_AGES_S = {"1m": 60.0, "1h": 3600.0, "1d": 86400.0}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of one update.

    `turns` are in the batch's order; `drops` are turns that left the backlog without an update, by reason; `rewards` as
    they were applied. `released`: the versions released before, by which staleness is counted; `held_to`: the version
    that the KL term holds to, None for the given model; `afresh`: the optimizer began with this update, from the
    published weights of the parent; `suites`: how many turns were compared with each suite of eval cases, and how many
    of them were left out; `again`: the version whose update this is, made again without what was excluded since."""

    version: PolicyRef
    parent: PolicyRef
    seed: int
    settings: str  # the learner's settings, as JSON
    turns: tuple[TurnRecord, ...]
    rewards: tuple[Reward, ...]
    ages_s: tuple[float, ...]  # from each turn to the outcome that decided its reward
    applied: dict[InferenceId, Applied]  # of the turns that an update had before
    drops: dict[str, tuple[InferenceId, ...]] = {}
    released: tuple[PolicyRef, ...] = ()
    held_to: PolicyRef | None = None
    afresh: bool = False
    suites: tuple[SuiteCheck, ...] = ()
    again: PolicyRef | None = None


def asked(
    parent: PolicyRef,
    settings: LearnerSettings,
    batch: Sequence[ScoredTurn],
    drops: Mapping[str, tuple[InferenceId, ...]],
    suites: tuple[SuiteCheck, ...],
) -> Manifest:
    """Return the manifest of an update upon `parent` that was not made yet; its version is still the parent's."""
    return Manifest(
        version=parent,
        parent=parent,
        seed=settings.seed,
        settings=settings.model_dump_json(),
        turns=(),
        rewards=tuple(scored.reward for scored in batch),
        ages_s=tuple(scored.age_s for scored in batch),
        applied={scored.inference_id: scored.applied for scored in batch if scored.applied},
        drops=dict(drops),
        suites=suites,
    )


def draft(
    made: Manifest,
    batch: Sequence[ScoredTurn],
    figures: Mapping[str, float],
    offsets: Mapping[TopicPartition, int],
    now: datetime,
    name: str,
) -> PolicyVersion:
    """Return what is published of the update's version, still without a digest and the weights' path.

    `name`: what the policy is called."""
    trained = [scored for scored, record in zip(batch, made.turns, strict=True) if record.dropped is None]
    return PolicyVersion(
        version=made.version,
        policy=name,
        digest="",
        parent=made.parent,
        manifest=None,
        log_offsets={str(source): offset for source, offset in offsets.items()},
        turns=len(trained),
        updates=1,
        metrics={**figures, **counts(made)},
        outcome_arrivals=tuple(s.reward.last_outcome_at for s in trained if s.reward.last_outcome_at),
        weights="",
        created_at=now,
        again=made.again,
    )


def name_of(policy: PolicyName, batch: Sequence[ScoredTurn], parent: PolicyVersion | None) -> str:
    """Return what engines call the policy: the base policy as in those of the turns that it spoke, or as its parent."""
    if policy != BASE:
        return policy
    spoken = (scored.turn for scored in batch if all(s.version.policy == BASE for s in scored.turn.policy_versions))
    own = next(spoken, None)
    if own is not None:
        return own.policy
    assert parent is not None, "an update is upon a published version"
    return parent.policy


def encode(manifest: Manifest) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(manifest, enc_hook=codec.plain))


def decode(data: bytes) -> Manifest:
    raw = zstandard.ZstdDecompressor().decompress(data)
    return msgspec.msgpack.decode(raw, type=Manifest, dec_hook=codec.typed)


def path_of(version: PolicyRef) -> str:
    return f"manifests/{version.padded}.msgpack.zst"


def settings_of(manifest: Manifest) -> LearnerSettings:
    """Return the settings that the version was made with, also when they had other names then."""
    return LearnerSettings.model_validate(under_their_names(json.loads(manifest.settings), "learner"))


def batch_of(manifest: Manifest, turns: dict[InferenceId, Completion]) -> list[ScoredTurn]:
    """Return the very batch that made the version."""
    return [
        ScoredTurn(turns[reward.inference_id], reward, manifest.applied.get(reward.inference_id))
        for reward in manifest.rewards
    ]


def as_one(updates: Sequence[Manifest], version: PolicyRef, parent: PolicyRef) -> Manifest:
    """Merge successive updates into one, with the last record of each turn that trained.

    The result makes `version` from `parent` at once."""
    last: dict[InferenceId, tuple[TurnRecord, Reward, float]] = {}
    taught: dict[InferenceId, tuple[DemonstrationRecord | None, tuple[TextEdit, ...]]] = {}
    for update in updates:
        for record, reward, age_s in zip(update.turns, update.rewards, update.ages_s, strict=True):
            if (told := record.changed_demonstration) is not None:
                taught[record.inference_id] = (replace(told, taken_back=0) if told.tokens else None, reward.edits)
            if record.dropped is None or (told is not None and record.inference_id not in last):
                last[record.inference_id] = (replace(record, applied_revision=None, demonstration=None), reward, age_s)
    for name, (told, edits) in taught.items():
        record, reward, age_s = last[name]
        last[name] = (replace(record, demonstration=told), replace(reward, edits=edits), age_s)
    newest = updates[-1]
    return Manifest(
        version=version,
        parent=parent,
        seed=newest.seed,
        settings=newest.settings,
        turns=tuple(record for record, _, _ in last.values()),
        rewards=tuple(reward for _, reward, _ in last.values()),
        ages_s=tuple(age_s for _, _, age_s in last.values()),
        applied={},
        suites=checked(updates),
    )


def checked(updates: Iterable[Manifest]) -> tuple[SuiteCheck, ...]:
    """Return what all updates together compared with each suite; a suite that was changed counts as another."""
    found: dict[str, SuiteCheck] = {}
    for each in (check for update in updates for check in update.suites):
        before = found.get(each.digest)
        if before is not None:
            compared, left_out = before.compared + each.compared, before.left_out + each.left_out
            each = replace(each, compared=compared, left_out=left_out)
        found[each.digest] = each
    return tuple(found.values())


def checked_then(made: Manifest, gone: int) -> tuple[SuiteCheck, ...]:
    """Return what an update compared with each suite, less `gone` turns that were compared, too, and left it since."""
    return tuple(replace(each, compared=each.compared - gone) for each in made.suites)


def prove_exactly_once(lineage: Iterable[Manifest]) -> int:
    """Return how many (inference, revision) trained weights on a lineage, from anchor to version.

    Raises AssertionError naming the first that trained twice, or that corrects what was not the last applied, and the
    first demonstration that trained upon another one of its turn that was not taken back."""
    last: dict[InferenceId, int] = {}
    taught = set[InferenceId]()
    parent: PolicyRef | None = None
    trained = 0
    for manifest in lineage:
        assert parent is None or manifest.parent == parent, f"version {manifest.version} is no child of {parent}"
        parent = manifest.version
        for record in manifest.turns:
            before = last.get(record.inference_id)
            assert before is None or record.revision > before, (
                f"{record.inference_id} revision {record.revision} trained again in version {manifest.version}"
            )
            assert record.applied_revision == before, f"{record.inference_id} corrects {record.applied_revision}"
            if (told := record.changed_demonstration) is not None:
                had = record.inference_id in taught
                assert (told.taken_back > 0) == had, f"{record.inference_id}: its demonstration before is still taught"
                (taught.add if told.tokens else taught.discard)(record.inference_id)
            if record.dropped is None:
                last[record.inference_id] = record.revision
                trained += 1
    return trained


def counts(manifest: Manifest) -> dict[str, float]:
    """Return figures for the version's metrics.

    `late_turns` trained otherwise than by the usual importance weights; `dropped_REASON` are turns that trained only
    the baseline or nothing at all; `reward_mass_AGE` is the absolute advantage that trained weights, by the age of its
    outcome (by KTO there is none); `untrained_mass_AGE` is that of the turns that an update left out. `demonstrations`
    trained, and `demonstrations_taken_back`; those that were `demonstrations_REASON` did not."""
    figures = defaultdict[str, float](float)
    for why, ids in manifest.drops.items():
        figures[f"dropped_{why}"] += len(ids)
    for record, age_s in zip(manifest.turns, manifest.ages_s, strict=True):
        if (told := record.demonstration) is not None:
            which = {"demonstrations": told.tokens, "demonstrations_taken_back": told.taken_back}
            for name in [*(name for name, tokens in which.items() if tokens), *_refused(told)]:
                figures[name] += 1
        if record.late:
            figures["late_turns"] += 1
            if record.credit:
                figures[f"{TRAINED}{_age(age_s)}"] += abs(record.credit)
        elif record.dropped is not None:
            figures[f"dropped_{record.dropped}"] += 1
            figures[f"{UNTRAINED}{_age(age_s)}"] += abs(record.credit)
        else:
            figures[f"{TRAINED}{_age(age_s)}"] += abs(record.credit)
    return dict(figures)


def _refused(told: DemonstrationRecord) -> list[str]:
    return [] if told.dropped is None else [f"demonstrations_{told.dropped}"]


def _age(seconds: float) -> str:
    return next((name for name, limit_s in _AGES_S.items() if seconds <= limit_s), "older")
