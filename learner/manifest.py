"""Manifests: which turns and revisions made a version, so that training can be checked and lived again."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import zstandard

from core.events import Completion, Reward
from core.ids import InferenceId, Version
from learner.scored import Applied, ScoredTurn, TurnRecord


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One update. `turns` in the batch's order; `drops` are turns that left the backlog without any update, by reason;
    `rewards` as they were applied."""

    version: Version
    parent: Version
    seed: int
    settings: str  # the learner's settings, as JSON
    turns: tuple[TurnRecord, ...]
    rewards: tuple[Reward, ...]
    applied: dict[InferenceId, Applied]  # of the corrections among the turns
    drops: dict[str, tuple[InferenceId, ...]] = {}


def encode(manifest: Manifest) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(manifest))


def decode(data: bytes) -> Manifest:
    return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data), type=Manifest)


def path_of(version: Version) -> str:
    return f"manifests/{version:08d}.msgpack.zst"


def batch_of(manifest: Manifest, turns: dict[InferenceId, Completion]) -> list[ScoredTurn]:
    """The very batch that made the version."""
    return [
        ScoredTurn(turns[reward.inference_id], reward, manifest.applied.get(reward.inference_id))
        for reward in manifest.rewards
    ]


def prove_exactly_once(lineage: Iterable[Manifest]) -> int:
    """How many (inference, revision) trained weights on a lineage, from anchor to version.

    Raises AssertionError naming the first that trained twice, or a correction of what was not the last applied.
    """
    last: dict[InferenceId, int] = {}
    parent: Version | None = None
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


def count_drops(records: Sequence[TurnRecord]) -> dict[str, float]:
    """`dropped_REASON`: how many turns of an update trained the baseline alone."""
    counts = Counter(f"dropped_{record.dropped}" for record in records if record.dropped is not None)
    return {name: float(count) for name, count in counts.items()}
