"""Adapters published upon a tiny random model, and what the learner would compute of each."""

import zlib
from pathlib import Path

import torch
from local_world import World
from safetensors.torch import save_file

from core.ids import BASE, PolicyRef, base_ref
from core.ports import AdapterConfig, WeightsRef

RANK, ALPHA = 4, 8.0


class Adapters(World):
    """Adapters upon the anchor, and the same policies unmerged, as the learner computes them."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.tensors_of: dict[PolicyRef, dict[str, torch.Tensor]] = {}

    def adapter(self, version: int | PolicyRef, *, size: float = 0.15, **changes: object) -> WeightsRef:
        """Publish an adapter of the base policy, or of another one."""
        ref = base_ref(version) if isinstance(version, int) else version
        generator = torch.Generator().manual_seed(zlib.crc32(str(ref).encode()) if ref.policy != BASE else ref.version)
        tensors = {}
        for name, module in self.models[base_ref(1)].named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                outputs, inputs = module.weight.shape
                tensors[f"{name}.lora_A.weight"] = size * torch.randn(RANK, inputs, generator=generator)
                tensors[f"{name}.lora_B.weight"] = size * torch.randn(outputs, RANK, generator=generator)
        path = self.directory / f"a{ref}" / "adapter.safetensors"
        path.parent.mkdir()
        save_file(tensors, path)
        config = {"base_digest": self.anchor.digest, "rank": RANK, "alpha": ALPHA} | changes
        self.tensors = self.tensors_of[ref] = tensors
        return self.weights.publish(ref, [path], base_ref(1), AdapterConfig(**config))  # type: ignore[arg-type]

    @torch.inference_mode()
    def score_unmerged(self, tokens: list[int], version: PolicyRef | None = None) -> torch.Tensor:
        """Return log-probabilities of tokens[1:] as the anchor and an adapter beside it, the last one, give them."""
        model, hooks = self.models[base_ref(1)], []
        adapter = self.tensors if version is None else self.tensors_of.get(version, {})
        for name, module in model.named_modules():
            if f"{name}.lora_A.weight" in adapter:
                a, b = (adapter[f"{name}.lora_{side}.weight"] for side in "AB")
                hooks.append(
                    module.register_forward_hook(
                        lambda _, inputs, output, a=a, b=b: output + ALPHA / RANK * (inputs[0] @ a.T) @ b.T
                    )
                )
        found = self.score(1, tokens)
        for hook in hooks:
            hook.remove()
        return found
