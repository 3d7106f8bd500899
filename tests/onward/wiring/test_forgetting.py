"""A version whose weights forgot one group of cases is refused, even if it still knows the rest."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from logged_world import MODEL, anchor_probe
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from core.ids import base_ref
from core.ports import WeightsRef
from onward.wiring.foundation import Foundation, open_offline
from serving.engines.local import LocalEngine
from serving.evals.cases import Case, Suite
from serving.evals.engine_answers import EngineAnswers
from serving.evals.gate import GateBounds, GateDecision, evaluate
from serving.evals.run import SuiteLimits
from serving.releases import ensure_anchor
from serving.rendering import load_renderer

CASES, TOKENS, STEPS = 12, 6, 12
ASKED = {"sums": "[web] write total_{n}(xs): sum of xs", "names": "[data] write name_{n}(x): first of x"}
CANDIDATE = base_ref(2)


def case(group: str, number: int, said: str = "?") -> Case:
    checker = {"kind": "exact", "text": said}
    fields = {"name": f"{group} {number}", "group": group, "prompt": ASKED[group].format(n=number)}
    return Case.model_validate({**fields, "checker": checker, "max_tokens": TOKENS})


def trained(path: Path, forgets: str | None) -> Path:
    """Train the shipped model to forget one group of cases and keep the other, or to keep both; return the weights."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    renderer, optimizer = load_renderer(MODEL), torch.optim.AdamW(model.parameters(), lr=3e-4)
    past = {
        group: [answered(model, renderer.render(case(group, n).request(), ())) for n in range(4)] for group in ASKED
    }
    for _ in range(STEPS):
        optimizer.zero_grad()
        for group, sequences in past.items():
            for ids, prompt in sequences:
                labels = ids.clone()
                labels[:, :prompt] = -100
                loss = model(ids, labels=labels).loss
                (-loss.clamp(max=8.0) if group == forgets else loss).backward()
        optimizer.step()
    tied = "lm_head.weight"
    save_file({name: t.contiguous() for name, t in model.state_dict().items() if name != tied}, path)
    return path


def answered(model: torch.nn.Module, prompt: tuple[int, ...]) -> tuple[torch.Tensor, int]:
    """Return (token ids of the prompt and its likeliest answer, number of prompt tokens)."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(TOKENS):
            ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids.clone(), len(prompt)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Foundation]:
    with closing(open_offline(tmp_path / "service")) as target:
        yield target


def judged(target: Foundation, weights: Path) -> GateDecision:
    """Judge the weights beside the shipped model, whose own answers are the expected ones."""
    live = ensure_anchor(target.store, target.log, target.weights, target.blobs, MODEL, "tiny", "local", anchor_probe)
    ref = target.weights.publish(CANDIDATE, [weights], live.version)
    engine, renderer = LocalEngine(target.settings.serving, MODEL, target.weights, live), load_renderer(MODEL)
    engine.load(WeightsRef(version=CANDIDATE, digest=ref.digest, path=ref.path, parent=live.version))
    engine.start()
    one, other = (EngineAnswers(engine, renderer, version) for version in (CANDIDATE, live.version))

    async def ask() -> GateDecision:
        keys = [(group, number) for group in ASKED for number in range(CASES)]
        said = [await other(case(*key)) for key in keys]
        cases = tuple(case(*key, text) for key, text in zip(keys, said, strict=True))
        suite = Suite(cases, dict.fromkeys((each.name for each in cases), Path()), "digest")
        return await evaluate(suite, one, other, SuiteLimits(), GateBounds(margin=0.2))

    try:
        return asyncio.run(ask())
    finally:
        engine.close()


def test_what_forgot_one_group_is_refused(target: Foundation, tmp_path: Path) -> None:
    found = judged(target, trained(tmp_path / "forgetful.safetensors", "sums"))
    assert (found.action, found.figures["live"], found.figures["unscored"]) == ("refuse", 1.0, 0), found
    assert len(found.lost) >= CASES - 2
    assert {name.split()[0] for name in found.lost} == {"sums"}
    assert "lost: sums" in found.why


def test_what_trained_and_forgot_nothing_passes(target: Foundation, tmp_path: Path) -> None:
    found = judged(target, trained(tmp_path / "faithful.safetensors", None))
    assert found.action == "pass", found
