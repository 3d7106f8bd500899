"""The turns that judged a replay's candidate, a row each, and what they say of two candidates at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from core.ids import InferenceId
from learner.off_policy.estimators import Paired, paired
from learner.off_policy.jackknife import JackknifeEstimate
from learner.off_policy.overlap import LoggedTurns

FILE: Final = "held_out.parquet"
"""Beside report.json. Parquet has what JSON has not: an answer that is impossible under a candidate, exactly."""


@dataclass(frozen=True)
class KeptTurns:
    """Turns in the order of their ids."""

    ids: tuple[str, ...]
    turns: LoggedTurns


def keep(ids: Sequence[InferenceId], turns: LoggedTurns, folder: Path) -> None:
    """Write each turn with its log-ratio under the candidate, its reward, what was predicted of that, and who spoke.

    A user is a number there."""
    predicted_N = np.zeros_like(turns.reward_N) if turns.value_N is None else turns.value_N
    columns = {"log_ratio": turns.log_ratio_N, "reward": turns.reward_N, "predicted": predicted_N}
    table = pa.table({"inference_id": list(map(str, ids)), **columns, "cluster": turns.cluster_N})
    pq.write_table(table, folder / FILE)


def kept(folder: Path) -> KeptTurns | None:
    """Return the turns of a replay; None where it wrote none."""
    if not (folder / FILE).exists():
        return None
    table = pq.read_table(folder / FILE).sort_by("inference_id")
    columns = (table[name].to_numpy() for name in ("log_ratio", "reward", "cluster", "predicted"))
    return KeptTurns(tuple(table["inference_id"].to_pylist()), LoggedTurns.of(*columns))


def compare_on(first: KeptTurns, second: KeptTurns) -> Paired:
    """Return what the second candidate would have earned beyond the first, on the turns that judged both.

    `refused` says so where these are not the same turns, said by the same users and rewarded alike."""
    ids, others = set(first.ids), set(second.ids)
    if ids != others:
        apart = f"{len(ids - others)} judge the first alone, {len(others - ids)} the second alone"
        return Paired(f"other turns: {apart}, {len(ids & others)} both")
    unlike = int((first.turns.reward_N != second.turns.reward_N).sum())
    if unlike:
        return Paired(f"other rewards: {unlike} of the {len(ids)} turns are rewarded otherwise")
    if not np.array_equal(first.turns.cluster_N, second.turns.cluster_N):
        return Paired(f"other users: the same {len(ids)} turns are of other users")
    return paired(second.turns, first.turns)


def difference(found: Paired) -> dict[str, Any]:
    """Return the difference of two candidates for a report in JSON."""
    differences = {name: interval(estimate) for name, estimate in found.differences.items()}
    return {"refused": found.refused, "bends": found.bends, "differences": differences}


def interval(estimate: JackknifeEstimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
