"""A publisher of versions into a service's directory, as a learner does, with weights of the test's choice."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch
from safetensors.torch import load_file, save_file

from core.events import PolicyVersion, Topic
from core.ids import ANCHOR, PolicyRef
from core.model.probes import get_probe, put_probe
from learner.model.policy_model import PolicyModel
from learner.versions.probe import record
from onward.wiring.foundation import open_foundation


class Publisher:
    """A publisher beside the service, in the test's process, under the same settings."""

    def __init__(self, directory: Path, overrides: Mapping[str, str] | None = None) -> None:
        self._foundation = open_foundation(directory, overrides)
        self._made = directory / "made"
        self._made.mkdir(exist_ok=True)
        self._policy = PolicyModel(self._foundation.model, "cpu")
        self._tensors = {
            name: value.float()
            for shard in sorted(self._foundation.model.glob("*.safetensors"))
            for name, value in load_file(shard).items()
        }

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._foundation.close()

    def publish_damaged(self) -> int:
        """Publish a version whose file is damaged in the blobs before anybody hears of it."""
        return self.publish(spoil=False, rot=True)

    def publish(
        self, *, scale: float = 1e-4, share: float = 1.0, spoil: bool = False, rot: bool = False, probed: bool = True
    ) -> int:
        """Publish a child of the live version, the last weights with noise on a share of them; return its number.

        `spoil` replaces this by noise as large as the weights; `rot` damages the published file. `probed` records a
        probe, as SGLang's hosts need it; the engine within the service measures for itself."""
        foundation = self._foundation
        with foundation.store.work() as work:
            version = work.policies.allocate(foundation.clock.now())
            parent = work.releases.live(foundation.settings.serving.cluster)
        generator = torch.Generator().manual_seed(version.version)
        changed = {}
        for name, value in self._tensors.items():
            noise = torch.randn(value.shape, generator=generator)
            chosen = torch.rand(value.shape, generator=generator) < share
            changed[name] = value + (value.std() * noise if spoil else scale * noise * chosen)
        shard = self._made / "model.safetensors"
        save_file(changed, shard)
        if not spoil:
            self._tensors = changed
        ref = foundation.weights.publish(version, [shard], parent)
        if rot:
            self._rot(version)
        if probed:
            self._policy.load([shard])
            put_probe(foundation.blobs, version, record(self._policy, get_probe(foundation.blobs, ANCHOR), ref.digest))
        policy = PolicyVersion(
            version=version,
            policy=foundation.settings.serving.model_name,
            digest=ref.digest,
            parent=parent,
            manifest=None,
            weights=ref.path,
            created_at=foundation.clock.now(),
        )
        with foundation.store.work() as work:
            work.policies.put(policy)
        foundation.log.append_blocking(Topic.POLICIES, [policy])
        return version.version

    def _rot(self, version: PolicyRef) -> None:
        blobs = self._foundation.blobs
        for path in blobs.list(f"weights/{version.padded}"):
            if "safetensors" in path or "delta" in path:
                content = bytearray(blobs.get(path))
                content[-len(content) // 3] ^= 0x41
                blobs.put(path, bytes(content))
