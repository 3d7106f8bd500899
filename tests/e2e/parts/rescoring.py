"""Recorded log-probabilities, computed again with stock transformers in float32."""

import torch
from safetensors.torch import load_file
from sqlalchemy import select
from transformers import AutoModelForCausalLM

from core.events import Completion
from core.ids import PolicyRef
from core.model.adapters import A, B
from core.ports import AdapterConfig, WeightsRef
from core.store.database import tables
from core.store.work import View
from onward.wiring.foundation import Foundation


def all_turns(foundation: Foundation) -> list[Completion]:
    with foundation.store.read() as connection:
        ids = [row[0] for row in connection.execute(select(tables.turns.c.inference_id))]
        return [
            turn
            for start in range(0, len(ids), 500)
            for turn in View(connection).turns.get_many(ids[start : start + 500]).values()
        ]


def published_model(foundation: Foundation, version: PolicyRef) -> torch.nn.Module:
    with foundation.store.look() as view:
        policy = view.policies.get(version)
    assert policy is not None
    opened = foundation.weights.open(WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights))
    model = AutoModelForCausalLM.from_pretrained(foundation.model, dtype=torch.float32)
    state = {name: tensor.float() for shard in opened.shards for name, tensor in load_file(shard).items()}
    if opened.adapter is not None:
        state = _merged(model, state, opened.adapter)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert opened.adapter is not None or set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def _merged(model: torch.nn.Module, low: dict[str, torch.Tensor], adapter: AdapterConfig) -> dict[str, torch.Tensor]:
    """Return the weights that an adapter changes, with the change."""
    changed = {name.removesuffix(A): low[name.removesuffix(A) + B] @ a for name, a in low.items() if name.endswith(A)}
    return {
        f"{name}.weight": model.get_parameter(f"{name}.weight").data + adapter.scale * delta
        for name, delta in changed.items()
    }


@torch.inference_mode()
def worst_difference(model: torch.nn.Module, version: PolicyRef, spoken: list[Completion]) -> float:
    worst = 0.0
    for turn in spoken:
        ids = torch.tensor([turn.prompt_token_ids + turn.token_ids])
        logits = model(ids).logits[0, len(turn.prompt_token_ids) - 1 : -1]
        logprobs = torch.log_softmax(logits.float() / turn.logprob_space.temperature, -1)
        for span in turn.policy_versions:
            if span.version != version:
                continue
            span_ids = torch.tensor(turn.token_ids[span.start : span.end])
            ours = torch.tensor(turn.logprobs[span.start : span.end])
            theirs = logprobs[span.start : span.end].gather(1, span_ids[:, None])[:, 0]
            worst = max(worst, float((ours - theirs).abs().max()))
    return worst


def worst_difference_of(foundation: Foundation, spoken: list[Completion]) -> float:
    """Return the largest difference over all turns, each span under its own version."""
    versions = {span.version for turn in spoken for span in turn.policy_versions}
    return max(
        worst_difference(published_model(foundation, version), version, turns_of(spoken, version))
        for version in sorted(versions)
    )


def turns_of(spoken: list[Completion], version: PolicyRef) -> list[Completion]:
    return [turn for turn in spoken if any(span.version == version for span in turn.policy_versions)]
