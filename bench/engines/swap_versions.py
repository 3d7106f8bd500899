"""Versions made before anything is measured, and announced when a swap is wanted.

The learner's work to make one is no part of a swap's cost."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from core.events import PolicyVersion, Topic
from core.ids import ANCHOR, PolicyRef
from core.model.probes import get_probe, put_probe
from core.ports import WeightsRef
from learner.model.policy_model import PolicyModel
from learner.versions.probe import record
from onward.wiring.foundation import open_foundation
from serving.engines.sglang.verified_versions import VerifiedVersions

SCALE = 1e-4


class Versions:
    """The versions of a service's directory, whose anchor is published already.

    Each is its parent's weights and some noise."""

    def __init__(self, directory: Path, count: int) -> None:
        self._foundation = foundation = open_foundation(directory)
        self._refs: dict[PolicyRef, WeightsRef] = {}
        self._policy = PolicyModel(foundation.model, "cpu")
        self._shard = directory / "made" / "model.safetensors"
        self._shard.parent.mkdir()
        shards = sorted(foundation.model.glob("*.safetensors"))
        tensors = {name: value.float() for shard in shards for name, value in load_file(shard).items()}
        parent = ANCHOR
        for seed in range(count):
            generator = torch.Generator().manual_seed(seed)
            tensors = {n: value + SCALE * torch.randn(value.shape, generator=generator) for n, value in tensors.items()}
            parent = self._publish(tensors, parent)
        self.numbers = list(self._refs)

    def _publish(self, tensors: dict[str, torch.Tensor], parent: PolicyRef) -> PolicyRef:
        foundation = self._foundation
        with foundation.store.work() as work:
            version = work.policies.allocate(foundation.clock.now())
        save_file(tensors, self._shard)
        ref = self._refs[version] = foundation.weights.publish(version, [self._shard], parent)
        self._policy.load([self._shard])
        probe = record(self._policy, get_probe(foundation.blobs, ANCHOR), ref.digest)
        put_probe(foundation.blobs, version, probe)
        return version

    def announce(self, version: PolicyRef) -> None:
        foundation, ref = self._foundation, self._refs[version]
        policy = PolicyVersion(
            version=version,
            policy=foundation.settings.serving.model_name,
            digest=ref.digest,
            parent=ref.parent,
            manifest=None,
            weights=ref.path,
            created_at=foundation.clock.now(),
        )
        with foundation.store.work() as work:
            work.policies.put(policy)
        foundation.log.append_blocking(Topic.POLICIES, [policy])

    def directories(self, target: Path) -> dict[PolicyRef, Path]:
        """Return the versions' directories, verified and laid out for SGLang as a host does it."""
        foundation = self._foundation
        sglang = foundation.settings.serving.sglang
        shelf = VerifiedVersions(target, foundation.model, sglang.dtype, sglang.device)
        return {version: shelf.put(ref, foundation.weights.open(ref)).directory for version, ref in self._refs.items()}

    def close(self) -> None:
        self._foundation.close()
