"""Manifests: which turns and revisions made a version, so that training can be checked and done again."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec
import zstandard

from core import codec
from core.events import Completion, PolicyVersion, Reward, SuiteKeptOut
from core.ids import InferenceId, PolicyRef
from core.ports import TopicPartition
from core.settings import LearnerSettings
from learner.sequences.scored import Applied, ScoredTurn, TurnRecord

TRAINED, UNTRAINED = "reward_mass_", "untrained_mass_"
"""Prefixes of figures: absolute advantage, by the age of its outcome."""
_AGES_S = {"1m": 60.0, "1h": 3600.0, "1d": 86400.0}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of one update.

    `turns` are in the batch's order; `drops` are turns that left the backlog without an update, by reason; `rewards` as
    they were applied. `released`: the versions released before, by which staleness is counted; `held_to`: the version
    that the KL term holds to, None for the given model; `afresh`: the optimizer began with this update, from the
    published weights of the parent; `kept_out`: the eval suites whose solutions were kept out of it, none where an
    earlier build made it."""

    version: PolicyRef
    parent: PolicyRef
    seed: int
    settings: str  # the learner's settings, as JSON
    turns: tuple[TurnRecord, ...]
    rewards: tuple[Reward, ...]
    ages_s: tuple[float, ...]  # from each turn to the outcome that decided its reward
    applied: dict[InferenceId, Applied]  # of the corrections among the turns
    drops: dict[str, tuple[InferenceId, ...]] = {}
    released: tuple[PolicyRef, ...] = ()
    held_to: PolicyRef | None = None
    afresh: bool = False
    kept_out: tuple[SuiteKeptOut, ...] = ()


def draft(
    made: Manifest,
    batch: Sequence[ScoredTurn],
    figures: Mapping[str, float],
    offsets: Mapping[TopicPartition, int],
    now: datetime,
) -> PolicyVersion:
    """Return what is published of the update's version, still without a digest and the weights' path."""
    trained = [scored for scored, record in zip(batch, made.turns, strict=True) if record.dropped is None]
    return PolicyVersion(
        version=made.version,
        policy=batch[0].turn.policy,
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
        kept_out=made.kept_out,
    )


def encode(manifest: Manifest) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(manifest, enc_hook=codec.plain))


def decode(data: bytes) -> Manifest:
    raw = zstandard.ZstdDecompressor().decompress(data)
    return msgspec.msgpack.decode(raw, type=Manifest, dec_hook=codec.typed)


def path_of(version: PolicyRef) -> str:
    return f"manifests/{version.padded}.msgpack.zst"


def settings_of(manifest: Manifest) -> LearnerSettings:
    """Return the settings that the version was made with. Raises pydantic's ValidationError for a former build's."""
    return LearnerSettings.model_validate_json(manifest.settings)


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
    for update in updates:
        for record, reward, age_s in zip(update.turns, update.rewards, update.ages_s, strict=True):
            if record.dropped is None:
                last[record.inference_id] = (msgspec.structs.replace(record, applied_revision=None), reward, age_s)
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
        kept_out=kept_out_of_all([update.kept_out for update in updates]),
    )


def kept_out_of_all(records: Sequence[tuple[SuiteKeptOut, ...]]) -> tuple[SuiteKeptOut, ...]:
    """Return the suites that every one of several updates kept out, with the same cases; the turns add up."""
    found: dict[tuple[str, str], list[SuiteKeptOut]] = defaultdict(list)
    for each in (suite for record in records for suite in record):
        found[each.suite, each.digest].append(each)
    return tuple(
        msgspec.structs.replace(same[-1], turns=sum(each.turns for each in same))
        for same in found.values()
        if len(same) == len(records)
    )


def prove_exactly_once(lineage: Iterable[Manifest]) -> int:
    """Return how many (inference, revision) trained weights on a lineage, from anchor to version.

    Raises AssertionError naming the first that trained twice, or that corrects what was not the last applied."""
    last: dict[InferenceId, int] = {}
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
            if record.dropped is None:
                last[record.inference_id] = record.revision
                trained += 1
    return trained


def counts(manifest: Manifest) -> dict[str, float]:
    """Return figures for the version's metrics.

    `late_turns` trained without importance weights; `taught_texts` are users' own texts that stand after it, and
    `untaught_texts` those that do not fit the model, though their turns trained; `dropped_REASON` are turns that
    trained only the baseline or nothing at all; `reward_mass_AGE` is the absolute advantage that trained weights, by
    the age of its outcome; `untrained_mass_AGE` is that of the turns that an update left out."""
    figures = defaultdict[str, float](float)
    for why, ids in manifest.drops.items():
        figures[f"dropped_{why}"] += len(ids)
    for record, reward, age_s in zip(manifest.turns, manifest.rewards, manifest.ages_s, strict=True):
        if reward.edits and record.dropped is None:
            figures["taught_texts" if record.taught else "untaught_texts"] += 1
        if record.late:
            figures["late_turns"] += 1
        elif record.dropped is not None:
            figures[f"dropped_{record.dropped}"] += 1
            figures[f"{UNTRAINED}{_age(age_s)}"] += abs(record.credit)
        else:
            figures[f"{TRAINED}{_age(age_s)}"] += abs(record.credit)
    return dict(figures)


def _age(seconds: float) -> str:
    return next((name for name, limit_s in _AGES_S.items() if seconds <= limit_s), "older")
