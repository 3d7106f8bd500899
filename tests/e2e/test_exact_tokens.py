"""What was recorded is what was sampled, across swaps: re-scored with stock transformers in float32."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from service_tree import Service, simulate
from sqlalchemy import select
from transformers import AutoModelForCausalLM

from core import tables
from core.events import Completion
from core.ports import WeightsRef
from core.store import policies, turns
from onward.wiring import Foundation, open_foundation

MakeService = Callable[..., Service]
TOLERANCE = 1e-4


def all_turns(foundation: Foundation) -> list[Completion]:
    with foundation.store.read() as connection:
        ids = [row[0] for row in connection.execute(select(tables.turns.c.inference_id))]
        return [
            turn
            for start in range(0, len(ids), 500)
            for turn in turns.get_turns(connection, ids[start : start + 500]).values()
        ]


def published_model(foundation: Foundation, version: int) -> torch.nn.Module:
    with foundation.store.read() as connection:
        policy = policies.get_policy(connection, version)  # type: ignore[arg-type]
    assert policy is not None
    shards = foundation.weights.open(WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights))
    model = AutoModelForCausalLM.from_pretrained(foundation.model, dtype=torch.float32)
    state = {name: tensor.float() for shard in shards for name, tensor in load_file(shard).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def worst_difference(model: torch.nn.Module, version: int, spoken: list[Completion]) -> float:
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


@pytest.mark.timeout(300)
def test_every_token_rescores_under_its_version(make_service: MakeService, tmp_path: Path) -> None:
    settings = {"learner__batch_turns": 16, "learner__min_turns": 8, "serving__keep_versions": 100_000}
    service = make_service(**settings, serving__min_swap_interval_s=0.05).start()
    driver = simulate(service, tmp_path / "demo", seconds=15, rate=12)
    driver.communicate(timeout=120)
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["failed_requests"] == 0
    service.stop()

    foundation = open_foundation(service.directory)
    spoken = all_turns(foundation)
    by_version: dict[int, list[Completion]] = {}
    for turn in spoken:
        assert sum(span.end - span.start for span in turn.policy_versions) == len(turn.token_ids) == len(turn.logprobs)
        for version in {span.version for span in turn.policy_versions}:
            by_version.setdefault(version, []).append(turn)
    assert len(by_version) > 3
    assert any(len(turn.policy_versions) > 1 for turn in spoken), "no turn was in flight during a swap"
    for version, some in by_version.items():
        assert worst_difference(published_model(foundation, version), version, some[:60]) <= TOLERANCE
    continued = [turn for turn in spoken if turn.parent_id is not None]
    parents = {turn.inference_id: turn for turn in spoken}
    assert continued
    for turn in continued:
        before = parents[turn.parent_id]  # type: ignore[index]
        history = before.prompt_token_ids + before.token_ids
        assert turn.prompt_token_ids[: len(history)] == history
    foundation.close()
