"""The learner scores tokens exactly as each family of models does, or refuses the model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, make_model
from torch import Tensor

from core.errors import ConfigError
from learner.model.output_head import OutputHead
from learner.model.policy_model import PolicyModel


def scored_by_hand(model: Any, ids_T: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
    logp_NV = (model(input_ids=ids_T[None]).logits[0, :-1] / temperature_N[:, None]).log_softmax(1)
    return logp_NV.gather(1, ids_T[1:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(1)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_it_scores_as_the_model_does(family: str, tmp_path: Path) -> None:
    make_model(family, tmp_path)
    policy = PolicyModel(tmp_path, "cpu")
    policy.model.eval()
    ids_T = torch.randint(3, 61, (20,), generator=torch.Generator().manual_seed(1))
    temperature_N = torch.linspace(0.5, 1.5, 19)
    gradients = []
    for score in (
        lambda: scored_by_hand(policy.model, ids_T, temperature_N),
        lambda: policy.head.score(
            policy.model.base_model(input_ids=ids_T[None]).last_hidden_state[0, :-1], ids_T[1:], temperature_N
        ),
    ):
        logprobs_N, entropy_N = score()
        policy.model.zero_grad()
        (logprobs_N.sum() + 0.3 * entropy_N.square().sum()).backward()
        grads = {
            name: weight.grad.clone() for name, weight in policy.model.named_parameters() if weight.grad is not None
        }
        gradients.append((logprobs_N.detach(), entropy_N.detach(), grads))
    (own_N, own_entropy_N, own), (found_N, found_entropy_N, found) = gradients
    torch.testing.assert_close(found_N, own_N, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_entropy_N, own_entropy_N, rtol=1e-4, atol=1e-5)
    assert found.keys() == own.keys()
    for name, gradient in own.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-3, atol=1e-4, msg=lambda text, at=name: f"{at}: {text}"
        )


def test_capped_logits_in_chunks_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("Gemma2", tmp_path)
    head, hidden_ND = OutputHead(model), torch.randn(11, 32)
    given = (hidden_ND, torch.arange(11), torch.ones(11))
    whole_N, _ = head.score(*given)
    monkeypatch.setattr("learner.model.output_head._LOGITS_AT_A_TIME", 61 * 3)
    parts_N, _ = head.score(*given)
    torch.testing.assert_close(parts_N, whole_N)


def test_a_family_that_does_otherwise_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model("Granite", tmp_path)
    plain = OutputHead.logits
    monkeypatch.setattr(OutputHead, "logits", lambda self, hidden_ND: 1.1 * plain(self, hidden_ND))
    with pytest.raises(ConfigError, match=r"GraniteForCausalLM changes its logits"):
        PolicyModel(tmp_path, "cpu")
