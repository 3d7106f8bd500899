"""The losses of a midtraining run by source, over stretches of its steps.

Legend: R rows, T tokens of a row, S sources."""

from typing import Any

import torch
from torch import Tensor

from learner.sequences.packing import PackedRows

STRETCHES = 20  # of a run


class LossesBySource:
    def __init__(self, names: list[str], steps: int) -> None:
        self._names, self._steps = names, steps
        self._length = max(1, steps // STRETCHES)
        self._curve: list[dict[str, Any]] = []
        self._totals = {name: {"tokens": 0, "weight": 0.0} for name in names}
        self._sums = [[0.0, 0.0] for _ in names]  # of this stretch: weighted losses, weights

    def add(self, step: int, losses_RT: Tensor, batch: PackedRows) -> None:
        """Add the losses of a step, counted from 0; `losses_RT` are of the places from the second on."""
        sources, weights = batch.sources_RT[:, 1:].flatten(), batch.weights_RT[:, 1:].flatten()
        is_one = sources >= 0
        sums_S = torch.zeros(2, len(self._names), dtype=torch.float64)
        weighted = losses_RT.detach().flatten() * weights
        sums_S[0].index_add_(0, sources[is_one], weighted[is_one].double())
        sums_S[1].index_add_(0, sources[is_one], weights[is_one].double())
        tokens_S = torch.bincount(batch.sources_RT[batch.sources_RT >= 0], minlength=len(self._names))
        for number, name in enumerate(self._names):
            loss, weight = sums_S[:, number].tolist()
            self._sums[number] = [self._sums[number][0] + loss, self._sums[number][1] + weight]
            self._totals[name]["tokens"] += int(tokens_S[number])
            self._totals[name]["weight"] += weight
        if (step + 1) % self._length == 0 or step + 1 == self._steps:
            self._close(step + 1)

    def _close(self, step: int) -> None:
        by_source = {
            name: loss / weight for name, (loss, weight) in zip(self._names, self._sums, strict=True) if weight
        }
        loss, weight = (sum(sums) for sums in zip(*self._sums, strict=True))
        self._curve.append({"step": step, "loss": loss / weight, "by_source": by_source})
        self._sums = [[0.0, 0.0] for _ in self._names]

    def report(self) -> dict[str, Any]:
        """Return each source's `share` of the tokens, and its `loss` in the last stretch that had any of it."""
        tokens = sum(total["tokens"] for total in self._totals.values())
        sources = {
            name: {**total, "share": total["tokens"] / tokens, "loss": self._last(name)}
            for name, total in self._totals.items()
        }
        return {"sources": sources, "losses": self._curve}

    def _last(self, name: str) -> float | None:
        return next((each["by_source"][name] for each in reversed(self._curve) if name in each["by_source"]), None)

    def state_dict(self) -> dict[str, Any]:
        return {"curve": self._curve, "totals": self._totals, "sums": self._sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._curve, self._totals, self._sums = state["curve"], state["totals"], state["sums"]
