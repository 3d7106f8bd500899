"""The kernels compared with the passes that define them, on a GPU if Triton can use one, otherwise on the CPU.

`test_triton` runs these cases in a process of its own, since Triton decides at its import whether it interprets.

Legend: N tokens, D hidden size, V vocabulary."""

import pytest
import torch
from onward_kernels import SamplingMask, token_logprobs_and_entropy, triton_passes
from onward_kernels.head import Head
from onward_kernels.tiled import TiledLogprobs
from onward_kernels.torch_passes import TorchPasses
from onward_kernels.triton_passes import INTERPRETED, TritonPasses
from plain_head import Inputs, both_gradients, make_inputs, some_ids
from torch import Tensor

DEVICE = "cpu" if INTERPRETED else "cuda"
# tokens, hidden size, vocabulary: nothing a multiple of a block, one of everything, several blocks, several shares
SHAPES = [(1, 1, 1), (1, 5, 2), (70, 9, 31), (65, 33, 65), (2, 3, 257)]


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_passes, "SHARE", 128)


def cast(inputs: Inputs, dtype: torch.dtype, *more: torch.dtype) -> Inputs:
    kinds = (dtype, *(more or (dtype,)))
    hidden_ND, weight_VD = (
        tensor.detach().to(DEVICE, kind).requires_grad_() for tensor, kind in zip(inputs[:2], kinds, strict=True)
    )
    return hidden_ND, weight_VD, inputs[2].to(DEVICE), inputs[3].to(DEVICE)


def agree(inputs: Inputs, mask: SamplingMask | None = None, rtol: float = 1e-4, atol: float = 1e-5) -> list[Tensor]:
    """Assert that outputs and gradients equal those of the definition; return them."""
    mask = None if mask is None else mask.to(DEVICE)
    Head(*inputs, mask).check()
    found = []
    for passes in (TritonPasses(), TorchPasses(chunk=16, width=64)):
        outputs = TiledLogprobs.apply(*inputs, mask, passes)
        found.append(
            [*(output.detach() for output in outputs), *both_gradients([each.cpu() for each in outputs], inputs)]
        )
    for mine, expected in zip(*found, strict=True):
        assert mine.dtype == expected.dtype
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        torch.testing.assert_close(mine, expected, rtol=rtol, atol=atol * max(1.0, largest))
    return found[0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_are_their_definition(shape: tuple[int, int, int], masked: bool) -> None:
    inputs = make_inputs(*shape)
    mask = SamplingMask.of(some_ids(inputs[2], shape[2], 0), shape[2]) if masked else None
    agree(cast(inputs, torch.float32), mask)


@pytest.mark.parametrize("dtypes", [(torch.bfloat16,), (torch.float16,), (torch.bfloat16, torch.float32)])
def test_half_precision_is_summed_in_float32(dtypes: tuple[torch.dtype, ...]) -> None:
    """Outputs agree as closely as in float32, gradients only to half precision.

    The gradient with respect to the logits is rounded before it is multiplied, and the interpreter truncates instead of
    rounding."""
    inputs = cast(make_inputs(20, 24, 70), *dtypes)
    with torch.no_grad():
        mine = TiledLogprobs.apply(*inputs, None, TritonPasses())
        torch.testing.assert_close(mine, TiledLogprobs.apply(*inputs, None, TorchPasses(16, 64)), rtol=1e-4, atol=1e-5)
    agree(inputs, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("scale", [-1e4, 1e4])
def test_huge_logits(scale: float) -> None:
    hidden_ND, weight_VD, targets_N, temperature_N = make_inputs(5, 3, 70)
    inputs = cast((hidden_ND.detach().abs() * scale, weight_VD.detach().abs(), targets_N, temperature_N), torch.float32)
    found = agree(inputs)
    assert all(torch.isfinite(tensor).all() for tensor in found)
    assert bool((found[0] <= 0).all())
    assert bool((found[1] >= 0).all())


def test_one_id_allowed_each_is_certain() -> None:
    inputs = cast(make_inputs(4, 3, 300), torch.float32)  # in most shares of the vocabulary nothing is allowed
    mask = SamplingMask.of([[target] for target in inputs[2].tolist()], 300)
    assert not any(tensor.any() for tensor in agree(inputs, mask))


def test_slabs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_passes, "SLAB", 1)  # a block of ids at a time
    agree(cast(make_inputs(9, 4, 150), torch.float32))


def test_no_tokens_and_frozen_weights() -> None:
    inputs = cast(make_inputs(0, 4, 6), torch.float32)
    assert [list(tensor.shape) for tensor in agree(inputs)] == [[0], [0], [0, 4], [6, 4]]
    hidden_ND, weight_VD, *rest = cast(make_inputs(3, 4, 6), torch.float32)
    logprobs_N, _ = TiledLogprobs.apply(hidden_ND, weight_VD.detach(), *rest, None, TritonPasses())
    expected_N, _ = TiledLogprobs.apply(hidden_ND, weight_VD.detach(), *rest, None, TorchPasses(2, 2))
    (mine,), (plain,) = (torch.autograd.grad(each.sum(), hidden_ND) for each in (logprobs_N, expected_N))
    torch.testing.assert_close(mine, plain)


@pytest.mark.skipif(INTERPRETED, reason="only tensors on a GPU are scored by the kernels")
def test_tensors_on_a_gpu_are_scored_by_the_kernels() -> None:
    inputs = cast(make_inputs(9, 4, 50), torch.float32)
    outputs = token_logprobs_and_entropy(*inputs, width=16)
    assert type(outputs[0].grad_fn).__name__ == "TiledLogprobsBackward"
    assert isinstance(outputs[0].grad_fn.passes, TritonPasses)
