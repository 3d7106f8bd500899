"""The definition of token log-probabilities and entropy, compared with plain log_softmax.

Legend: N tokens, D hidden size, V vocabulary."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onward_kernels import token_logprobs_and_entropy
from plain_head import gradients, make_inputs, naive
from torch import Tensor


@given(
    n=st.integers(1, 23),
    d=st.integers(1, 9),
    v=st.integers(1, 37),
    chunk=st.integers(1, 29),
    seed=st.integers(0, 2**16),
)
def test_it_is_log_softmax_at_any_size_and_chunk(n: int, d: int, v: int, chunk: int, seed: int) -> None:
    inputs = make_inputs(n, d, v, seed, torch.float64)
    for mine_N, plain_N in zip(token_logprobs_and_entropy(*inputs, chunk), naive(*inputs), strict=True):
        torch.testing.assert_close(mine_N, plain_N, rtol=1e-9, atol=1e-9)


@given(n=st.integers(1, 17), v=st.integers(2, 31), chunk=st.integers(1, 20), seed=st.integers(0, 2**16))
def test_its_gradients_are_those_of_log_softmax(n: int, v: int, chunk: int, seed: int) -> None:
    inputs = make_inputs(n, 5, v, seed, torch.float64)
    outer = torch.randn(2, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mine = gradients(lambda *given: token_logprobs_and_entropy(*given, chunk), inputs, *outer)
    for gradient, expected in zip(mine, gradients(naive, inputs, *outer), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("chunk", [3, 100])
def test_gradcheck(chunk: int) -> None:
    """Gradients match finite differences, with probabilities kept (one chunk) and recomputed (several)."""
    hidden_ND, weight_VD, targets_N, temperature_N = make_inputs(7, 4, 11, dtype=torch.float64)
    torch.autograd.gradcheck(
        lambda h, w: token_logprobs_and_entropy(h, w, targets_N, temperature_N, chunk), (hidden_ND, weight_VD)
    )


def test_either_output_may_be_left_alone() -> None:
    inputs = make_inputs(6, 4, 9, dtype=torch.float64)
    zeros, ones = torch.zeros(6), torch.ones(6)
    for which, weights in ((0, (ones, zeros)), (1, (zeros, ones))):
        alone = torch.autograd.grad(token_logprobs_and_entropy(*inputs)[which].sum(), inputs[:2])
        for gradient, expected in zip(alone, gradients(naive, inputs, *weights), strict=True):
            torch.testing.assert_close(gradient, expected)


def test_each_token_has_its_own_temperature() -> None:
    hidden_ND, weight_VD, targets_N, temperature_N = make_inputs(5, 4, 9)
    with torch.no_grad():
        together_N, _ = token_logprobs_and_entropy(hidden_ND, weight_VD, targets_N, temperature_N)
        for n in range(5):
            scaled_1V = (hidden_ND[n : n + 1] @ weight_VD.T) / temperature_N[n]
            expected = float(scaled_1V.log_softmax(-1)[0, targets_N[n]])
            assert float(together_N[n]) == pytest.approx(expected, rel=1e-5)


def test_chunks_change_nothing_but_memory() -> None:
    inputs = make_inputs(64, 16, 101)
    whole = gradients(token_logprobs_and_entropy, inputs, torch.ones(64), torch.ones(64))
    parts = gradients(lambda *given: token_logprobs_and_entropy(*given, 7), inputs, torch.ones(64), torch.ones(64))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_chunk_bounds_what_stands_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward make no tensor of more than chunk x V numbers."""
    largest = 0
    plain = torch.log_softmax

    def watched(tensor: Tensor, dim: int) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return plain(tensor, dim=dim)

    monkeypatch.setattr(torch, "log_softmax", watched)
    inputs = make_inputs(50, 8, 33)
    logprobs_N, _ = token_logprobs_and_entropy(*inputs, 10)
    logprobs_N.sum().backward()
    assert largest == 10 * 33


def test_logits_far_apart_stay_finite() -> None:
    """An unshifted softmax would overflow: all logits are very negative, or one is far above the rest."""
    for scale in (-1e4, 1e4):
        weight_VD = (torch.ones(5, 1) + torch.arange(5)[:, None]).requires_grad_()
        hidden_ND = torch.full((2, 1), scale, requires_grad=True)
        logprobs_N, entropy_N = token_logprobs_and_entropy(hidden_ND, weight_VD, torch.tensor([0, 4]), torch.ones(2))
        assert torch.isfinite(entropy_N).all()
        assert bool((logprobs_N <= 0).all())
        (logprobs_N + entropy_N).sum().backward()
        assert hidden_ND.grad is not None
        assert torch.isfinite(hidden_ND.grad).all()


def test_half_precision_is_widened() -> None:
    hidden_ND, weight_VD, targets_N, temperature_N = make_inputs(9, 16, 21)
    half = (hidden_ND.detach().bfloat16().requires_grad_(), weight_VD.detach().bfloat16().requires_grad_())
    logprobs_N, entropy_N = token_logprobs_and_entropy(*half, targets_N, temperature_N)
    assert logprobs_N.dtype == entropy_N.dtype == torch.float32
    expected_N, _ = naive(half[0].float(), half[1].float(), targets_N, temperature_N)
    torch.testing.assert_close(logprobs_N, expected_N, atol=0.15, rtol=0.05)  # the logits are rounded to bfloat16
    logprobs_N.sum().backward()
    assert half[0].grad is not None
    assert half[0].grad.dtype == torch.bfloat16


def test_no_tokens_at_all() -> None:
    hidden_ND = torch.zeros(0, 4, requires_grad=True)
    weight_VD = torch.zeros(6, 4, requires_grad=True)
    logprobs_N, entropy_N = token_logprobs_and_entropy(
        hidden_ND, weight_VD, torch.zeros(0, dtype=torch.long), torch.zeros(0)
    )
    assert logprobs_N.shape == entropy_N.shape == (0,)
    (logprobs_N.sum() + entropy_N.sum()).backward()
    assert weight_VD.grad is not None
    assert not weight_VD.grad.any()
