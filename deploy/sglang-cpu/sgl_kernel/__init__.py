"""A stand-in for SGLang's `sgl_kernel` without a GPU or AMX: sglang 0.5.23 imports these names at start.

Its layers fall back to plain torch when the AMX operators are absent. What is left is bookkeeping of the KV cache,
which is done here in plain torch, and speculative decoding, which this installation does not have."""

from typing import Any

from torch import Tensor

__version__ = "0.4.7+cpu"

_ABSENT = (
    "assign_draft_cache_locs_contiguous_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
)


def assign_req_to_token_pool_cpu(
    req_pool_indices_R: Tensor,
    req_to_token_PT: Tensor,
    start_offset_R: Tensor,
    end_offset_R: Tensor,
    out_cache_loc_N: Tensor,
    _pool_len: int,
) -> None:
    """Write each request's new cache places, which lie one request after another, into its row."""
    place = 0
    for row, start, end in zip(
        req_pool_indices_R.tolist(), start_offset_R.tolist(), end_offset_R.tolist(), strict=True
    ):
        if end > start:
            req_to_token_PT[row, start:end] = out_cache_loc_N[place : place + end - start].to(req_to_token_PT.dtype)
        place += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices_R: Tensor,
    req_to_token_PT: Tensor,
    start_offset_R: Tensor,
    end_offset_R: Tensor,
    out_cache_loc_N: Tensor,
    _pool_len: int,
) -> None:
    """Read each request's places from its row, the other way round."""
    place = 0
    for row, start, end in zip(
        req_pool_indices_R.tolist(), start_offset_R.tolist(), end_offset_R.tolist(), strict=True
    ):
        if end > start:
            out_cache_loc_N[place : place + end - start] = req_to_token_PT[row, start:end].to(out_cache_loc_N.dtype)
        place += end - start


def __getattr__(name: str) -> Any:
    if name not in _ABSENT:
        raise AttributeError(f"module {__name__} has no attribute {name}")

    def absent(*_: object, **__: object) -> None:
        raise NotImplementedError(f"{name}: speculative decoding is not part of the CPU installation")

    return absent
