"""Published versions with their probes, and an engine's host beside a real engine."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from core.blobs import FsspecBlobs
from core.ids import ANCHOR, base_ref
from core.model.probes import ProbeRecord, put_probe
from core.ports import AdapterConfig, WeightsRef
from learner.model.policy_model import PolicyModel
from learner.versions.loading import load_version
from learner.versions.probe import probe_of_model, record
from serving.weights.published import BlobWeights

MODEL = Path(__file__).resolve().parents[3] / "models" / "tiny"


class Published:
    """Blobs with the anchor and the versions that `publish` adds, each with its probe, as a learner makes it."""

    def __init__(self, directory: Path, model: Path = MODEL) -> None:
        self.directory, self.model = directory, model
        self.blobs = FsspecBlobs(directory / "blobs")
        self.weights = BlobWeights(self.blobs, cache=directory / "cache")
        self.policy = PolicyModel(model, "cpu")
        self.anchor_probe: ProbeRecord = probe_of_model(model, "cpu")
        self.refs = {ANCHOR: self.weights.publish(ANCHOR, sorted(model.glob("*.safetensors")), None)}
        put_probe(self.blobs, ANCHOR, self.anchor_probe)

    def tensors(self) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = {}
        for shard in sorted(self.model.glob("*.safetensors")):
            loaded |= load_file(shard)
        return loaded

    def shards(self, name: str, tensors: dict[str, torch.Tensor]) -> list[Path]:
        path = self.directory / "made" / f"{name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        save_file(tensors, path)
        return [path]

    def publish(self, version: int, *, scale: float = 1e-3, parent: int = 1) -> WeightsRef:
        """Publish the anchor's weights with noise from the version's own seed, in float32."""
        generator = torch.Generator().manual_seed(version)
        tensors = {
            name: value.float() + scale * torch.randn(value.shape, generator=generator)
            for name, value in self.tensors().items()
        }
        return self.publish_tensors(version, tensors, parent=parent)

    def publish_adapter(self, version: int, *, size: float = 0.05, parent: int = 1, rank: int = 4) -> WeightsRef:
        """Publish an adapter upon the anchor, drawn with the version's own seed."""
        generator = torch.Generator().manual_seed(version)
        tensors = {}
        for name, value in self.tensors().items():
            if name.endswith("_proj.weight"):
                outputs, inputs = value.shape
                module = name.removesuffix(".weight")
                tensors[f"{module}.lora_A.weight"] = size * torch.randn(rank, inputs, generator=generator)
                tensors[f"{module}.lora_B.weight"] = size * torch.randn(outputs, rank, generator=generator)
        config = AdapterConfig(base_digest=self.refs[ANCHOR].digest, rank=rank, alpha=8.0)
        ref = self.weights.publish(base_ref(version), self.shards(f"{version}", tensors), base_ref(parent), config)
        load_version(self.policy, self.weights.open(ref))
        put_probe(self.blobs, base_ref(version), record(self.policy, self.anchor_probe, ref.digest))
        self.refs[base_ref(version)] = ref
        return ref

    def publish_tensors(self, version: int, tensors: dict[str, torch.Tensor], *, parent: int = 1) -> WeightsRef:
        shards = self.shards(f"{version}", tensors)
        ref = self.weights.publish(base_ref(version), shards, base_ref(parent))
        self.policy.load(shards)
        put_probe(self.blobs, base_ref(version), record(self.policy, self.anchor_probe, ref.digest))
        self.refs[base_ref(version)] = ref
        return ref
