"""A script that compiles every kernel to machine code for a Hopper card, without a card."""

import torch
import triton
from onward_kernels.head import FLOOR, NOTHING
from onward_kernels.triton_passes import PRECISION, SHARE, _grad_logits, _moments, blocks
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

READ = {"targets": "*i64", "temperature": "*fp32", "bits": "*i32", "sets": "*i64"}
VECTORS = {
    _moments: ("highest_out", "total_out", "product_out", "target_out"),
    _grad_logits: ("highest_in", "level_in", "slope_in", "target_in"),
}
KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def compile_for(kernel: triton.JITFunction, kind: str, masked: bool) -> bytes:  # type: ignore[type-arg]
    options = blocks(KINDS[kind], masked)
    warps = {"num_warps": options.pop("num_warps")}
    fixed = {"SHARE": SHARE, "MASKED": masked, "WIDEN": False, "PRECISION": PRECISION, **options}
    fixed |= {"FLOOR": FLOOR, "NOTHING": NOTHING}
    fixed = {name: value for name, value in fixed.items() if name in kernel.arg_names}
    types = dict.fromkeys(("hidden", "weight", "grad_out"), f"*{kind}") | READ | dict.fromkeys(VECTORS[kernel], "*fp32")
    types |= dict.fromkeys(("N", "V", "D", "first", "last"), "i32") | dict.fromkeys(fixed, "constexpr")
    signature = {name: types[name] for name in kernel.arg_names}
    even = [name for name, kind in signature.items() if kind.startswith("*") or name == "D"]  # as they mostly come
    hints = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in even}
    source = ASTSource(kernel, signature, fixed, hints)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=warps)
    return bytes(code.asm["cubin"])


if __name__ == "__main__":
    assert compile_for(_moments, "fp32", masked=False)
    assert compile_for(_moments, "bf16", masked=True)
    assert compile_for(_grad_logits, "bf16", masked=True)
