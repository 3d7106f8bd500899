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
from plain_head import Inputs, both_gradients, make_inputs, naive, some_ids
from torch import Tensor

DEVICE = "cpu" if INTERPRETED else "cuda"
SHARE = triton_passes.SHARE
# tokens, hidden size, vocabulary: nothing a multiple of a block, one of everything, several blocks, several shares
SHAPES = [(1, 1, 1), (1, 5, 2), (70, 9, 31), (65, 33, 65), (2, 3, 513)]


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_passes, "SHARE", 256)


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
    inputs = cast(make_inputs(4, 3, 900), torch.float32)  # in most shares of the vocabulary nothing is allowed
    mask = SamplingMask.of([[target] for target in inputs[2].tolist()], 900)
    assert not any(tensor.any() for tensor in agree(inputs, mask))


def test_slabs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_passes, "SLAB", 1)  # a block of ids at a time
    agree(cast(make_inputs(9, 4, 150), torch.float32))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_block_reaches_into_the_next_share(dtype: torch.dtype, masked: bool) -> None:
    """Its ids would count twice."""
    assert SHARE % triton_passes.blocks(dtype, masked)["BLOCK_V"] == 0


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


@pytest.mark.skipif(INTERPRETED, reason="too large for the interpreter")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(70, 131, 50_001), (130, 576, 49_152), (67, 1024, 151_936)])
def test_models_own_sizes_agree_with_float64(shape: tuple[int, int, int], dtype: torch.dtype, masked: bool) -> None:
    """They are held to whole logits in float64 of the same inputs: nothing a multiple of a block, SmolLM2, Qwen3."""
    hidden_ND, weight_VD, targets_N, temperature_N = make_inputs(*shape)
    scaled = (hidden_ND.detach(), weight_VD.detach() * shape[1] ** -0.5, targets_N, temperature_N)
    inputs = cast(scaled, dtype)
    allowed = some_ids(targets_N, shape[2], 0) if masked else None
    mask = SamplingMask.of(allowed, shape[2]).to(DEVICE) if allowed else None
    outputs = token_logprobs_and_entropy(*inputs, mask=mask)
    wide = (*(tensor.detach().double().requires_grad_() for tensor in inputs[:2]), inputs[2], inputs[3].double())
    expected = naive(*wide, allowed)
    found = [*outputs, *both_gradients([each.cpu() for each in outputs], inputs)]
    right = [*expected, *both_gradients([each.cpu() for each in expected], wide)]
    bounds = [1e-5, 1e-5, *[1e-5 if dtype == torch.float32 else 1e-2] * 2]
    for mine, plain, bound in zip(found, right, bounds, strict=True):
        assert float((mine.double() - plain).norm() / plain.norm()) < bound
