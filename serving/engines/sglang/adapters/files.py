"""Verified adapters on an engine's own host, laid out as peft does, which is what SGLang reads.

    DIRECTORY/acme@00000007-3/adapter_config.json         rank, alpha, modules
    DIRECTORY/acme@00000007-3/adapter_model.safetensors   the version's matrices
    DIRECTORY/acme@00000007-3/zeros.safetensors           those of modules without one that SGLang fuses with others
    DIRECTORY/given-0/                                    zeros alone: the given model

A directory is never used again: SGLang remembers it, and would load a dropped adapter anew for a late request. What
does not fit ends a server when it first computes (an assertion in srt/lora/mem_pool.py), so it is refused here."""

import itertools
import json
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from core.errors import WeightsError
from core.model.adapters import A, B, LowRank, check_base, check_fits, low_rank_of
from core.model.weights_digest import tensors_of
from core.ports import AdapterConfig, Opened, WeightsRef
from serving.engines.sglang.adapters.arguments import GIVEN, TAKEN, TOGETHER
from serving.engines.sglang.verified_versions import link
from serving.weights.deltas.finite import check_finite

Floats = NDArray[np.float32]
_PARENTS = ("self_attn", "mlp")


@dataclass(frozen=True)
class HeldAdapter:
    """A verified version. `directory`: None for the given model itself, whose adapter is that of zeros."""

    ref: WeightsRef
    directory: Path | None


class AdapterFiles:
    """One thread puts and drops."""

    def __init__(self, directory: Path, base: Opened, rank: int) -> None:
        """Take adapters of at most this rank upon the given model, `base`."""
        shutil.rmtree(directory, ignore_errors=True)  # of a host that ended
        directory.mkdir(parents=True)
        self._directory, self._base, self._rank = directory, base, rank
        self._shapes = {name: tensor.shape for name, tensor in tensors_of(base.shards).items()}
        self._count = itertools.count()

    def put(self, ref: WeightsRef, opened: Opened) -> HeldAdapter:
        """Verify and lay out. Raises WeightsError naming what does not fit."""
        if opened.digest != ref.digest:
            raise WeightsError(f"{ref.path}: has digest {opened.digest}, version {ref.version} has {ref.digest}")
        adapter = opened.adapter
        if adapter is None:
            if not ref.version.is_given or ref.digest != self._base.digest:
                raise WeightsError(
                    f"version {ref.version} is whole weights: with organisations SGLang serves adapters upon the model "
                    f"with digest {self._base.digest}, and it itself as the first version of each policy"
                )
            return HeldAdapter(ref, None)
        changes = self._checked(ref, opened, adapter)
        target = self._new(ref.version.padded)
        for place, shard in enumerate(opened.shards):
            link(shard, target / ("adapter_model.safetensors" if place == 0 else f"adapter_model-{place}.safetensors"))
        self._complete(target, changes, self._fused(changes) - set(changes), adapter.rank, adapter.alpha)
        return HeldAdapter(ref, target)

    def given(self, targets: Collection[str]) -> Path:
        """Lay out an adapter of zeros, of one of these modules, which stands for the given model."""
        target = self._new(GIVEN)
        taken = [name for name in self._shapes if _is_taken(name) and name.split(".")[-2] in targets]
        if not taken:
            raise WeightsError(f"the given model has none of the modules {', '.join(targets)} for adapters")
        self._complete(target, (), self._fused(taken[:1]), rank=1, alpha=1.0)
        return target

    def _new(self, name: str) -> Path:
        target = self._directory / f"{name}-{next(self._count)}"
        target.mkdir()
        return target

    def _complete(
        self, target: Path, changes: Collection[str], unchanged: Collection[str], rank: int, alpha: float
    ) -> None:
        """Add the configuration, and matrices of zeros for the weights that stay unchanged."""
        zeros: dict[str, Floats] = {}
        for name in unchanged:
            outputs, inputs = self._shapes[name]
            module = name.removesuffix(".weight")
            zeros |= {
                module + A: np.zeros((rank, inputs), np.float32),
                module + B: np.zeros((outputs, rank), np.float32),
            }
        if zeros:
            save_file(zeros, target / "zeros.safetensors")
        targets = sorted({name.split(".")[-2] for name in (*changes, *unchanged)})
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": targets}
        (target / "adapter_config.json").write_text(json.dumps(config))

    def _checked(self, ref: WeightsRef, opened: Opened, adapter: AdapterConfig) -> dict[str, LowRank]:
        """Return an adapter's matrices by the weights that they change, once all of it fits."""
        check_base(adapter, self._base.digest, f"version {ref.version}")
        if adapter.rank > self._rank:
            raise WeightsError(f"version {ref.version} has rank {adapter.rank}, learner.lora.rank is {self._rank}")
        changes = low_rank_of(opened.shards, adapter)
        check_fits(changes, self._shapes)
        for name in changes:
            if not _is_taken(name):
                raise WeightsError(f"version {ref.version}: SGLang takes no adapter of {name}")
        check_finite(opened.shards)
        return changes

    def drop(self, held: HeldAdapter) -> None:
        if held.directory is not None:
            shutil.rmtree(held.directory, ignore_errors=True)

    def _fused(self, weights: Collection[str]) -> set[str]:
        """Return weights with those that SGLang fuses with one of them."""
        found = set(weights)
        for name in weights:
            place, own, _ = name.rsplit(".", 2)
            for group in TOGETHER:
                found |= {f"{place}.{other}.weight" for other in group if own in group}
        return found & self._shapes.keys()


def _is_taken(name: str) -> bool:
    parent, module = f".{name}".split(".")[-3:-1]
    return parent in _PARENTS and module in TAKEN
