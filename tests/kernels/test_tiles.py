"""Tiles of tokens and ids, and masks, in plain torch, compared with whole logits in float64.

Legend: N tokens, D hidden size, V vocabulary."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onward_kernels import SamplingMask, token_logprobs_and_entropy
from onward_kernels.token_logprobs import WIDTH
from plain_head import both_gradients, make_inputs, naive, some_ids
from torch.overrides import TorchFunctionMode


@given(
    n=st.integers(1, 13),
    d=st.integers(1, 7),
    v=st.integers(1, 80),
    chunk=st.integers(1, 15),
    width=st.integers(1, 90),
    masked=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_tiles_are_log_softmax_over_what_is_allowed(
    n: int, d: int, v: int, chunk: int, width: int, masked: bool, seed: int
) -> None:
    inputs = make_inputs(n, d, v, seed, torch.float64)
    allowed = some_ids(inputs[2], v, seed) if masked else None
    mask = SamplingMask.of(allowed, v) if allowed else None
    mine = token_logprobs_and_entropy(*inputs, chunk, mask=mask, width=width)
    plain = naive(*inputs, allowed)
    torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-9)
    found, expected = both_gradients(mine, inputs), both_gradients(plain, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_gradcheck() -> None:
    hidden_ND, weight_VD, targets_N, temperature_N = make_inputs(5, 3, 11, dtype=torch.float64)
    mask = SamplingMask.of(some_ids(targets_N, 11, 0), 11)
    torch.autograd.gradcheck(
        lambda h, w: token_logprobs_and_entropy(h, w, targets_N, temperature_N, 3, mask=mask, width=4),
        (hidden_ND, weight_VD),
    )


def test_one_output_alone_and_frozen_weights() -> None:
    inputs = make_inputs(6, 4, 9, dtype=torch.float64)
    for which in (0, 1):
        alone = torch.autograd.grad(token_logprobs_and_entropy(*inputs, width=4)[which].sum(), inputs[:2])
        torch.testing.assert_close(alone, torch.autograd.grad(naive(*inputs)[which].sum(), inputs[:2]))
        for frozen in (0, 1):
            given = [tensor.detach() if place == frozen else tensor for place, tensor in enumerate(inputs)]
            total = token_logprobs_and_entropy(*given, width=4)[which].sum()
            torch.testing.assert_close(torch.autograd.grad(total, inputs[1 - frozen])[0], alone[1 - frozen])


class _Largest(TorchFunctionMode):
    """A recorder of the largest tensor that any torch function received or returned."""

    numbers = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in (*args, result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().size() == 4 * tensor.numel():
                self.numbers = max(self.numbers, tensor.numel())
        return result


def test_beyond_the_width_no_matrix_of_tokens_by_vocabulary_is_made() -> None:
    inputs = make_inputs(64, 2, WIDTH + 5)
    with _Largest() as largest:
        sum(map(torch.sum, token_logprobs_and_entropy(*inputs, 16))).backward()  # type: ignore[union-attr]
    assert largest.numbers == 2 * 16 * WIDTH  # a tile, and room for its exponentials
    assert largest.numbers < 64 * WIDTH


@pytest.mark.parametrize("scale", [-1e4, 1e4])
def test_huge_logits_stay_exact(scale: float) -> None:
    """Differences of logits count, however large both are."""
    weight_VD = (torch.ones(5, 1) + torch.arange(5)[:, None] * 1e-4).requires_grad_()
    inputs = (torch.full((2, 1), scale, requires_grad=True), weight_VD, torch.tensor([0, 4]), torch.ones(2))
    mine = token_logprobs_and_entropy(*inputs, width=2)
    wide = tuple(tensor.detach().double() for tensor in inputs[:2])
    expected_N, _ = naive(wide[0], wide[1], inputs[2], inputs[3].double())
    torch.testing.assert_close(mine[0].double(), expected_N, rtol=1e-3, atol=1e-3)
    assert bool((mine[0] <= 0).all())
    assert all(torch.isfinite(gradient).all() for gradient in both_gradients(mine, inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    inputs = make_inputs(9, 16, 21)
    half = (*(tensor.detach().to(dtype).requires_grad_() for tensor in inputs[:2]), *inputs[2:])
    wide = (*(tensor.detach().float().requires_grad_() for tensor in half[:2]), *inputs[2:])
    mine, plain = token_logprobs_and_entropy(*half, 4, width=8), naive(*wide)
    torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5)
    for gradient, expected in zip(both_gradients(mine, half), both_gradients(plain, wide), strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, expected.to(dtype), rtol=0.01, atol=1e-3)


def test_no_tokens_and_one_id() -> None:
    hidden_ND, weight_VD, targets_N, temperature_N = make_inputs(0, 4, 6)
    outputs = token_logprobs_and_entropy(hidden_ND, weight_VD, targets_N, temperature_N, width=4)
    assert [output.shape for output in outputs] == [(0,), (0,)]
    assert not any(
        gradient.any() for gradient in both_gradients(outputs, (hidden_ND, weight_VD, targets_N, temperature_N))
    )
    certain = make_inputs(3, 4, 6)
    mask = SamplingMask.of([[target] for target in certain[2].tolist()], 6)
    outputs = token_logprobs_and_entropy(*certain, mask=mask)
    assert not any(output.any() for output in outputs)
    assert not any(gradient.any() for gradient in both_gradients(outputs, certain))


@pytest.mark.parametrize(
    ("target", "temperature", "told"),
    [
        (9, 1.0, "token 2: its target is outside the vocabulary of 9"),
        (-1, 1.0, "token 2: its target is outside the vocabulary of 9"),
        (0, 0.0, "token 2: its temperature is not positive"),
        (0, float("nan"), "token 2: its temperature is not positive"),
    ],
)
def test_tokens_that_cannot_be_scored_are_named(target: int, temperature: float, told: str) -> None:
    hidden_ND, weight_VD, targets_N, temperature_N = make_inputs(4, 3, 9)
    targets_N[2], temperature_N[2] = target, temperature
    with pytest.raises(ValueError, match=told):
        token_logprobs_and_entropy(hidden_ND, weight_VD, targets_N, temperature_N, width=4)


def test_a_target_that_could_not_be_sampled_is_named() -> None:
    inputs = make_inputs(3, 2, 4)
    other = (int(inputs[2][1]) + 1) % 4
    with pytest.raises(ValueError, match="token 1: its mask does not allow its target"):
        token_logprobs_and_entropy(*inputs, mask=SamplingMask.of([None, [other], None], 4))
