"""The library of `step.cpp`: compiled once on the machine that runs it, for the torch that is installed.

`make install` compiles it, where there is a compiler. Without it the embedded engine computes the same numbers call by
call."""

import logging
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import torch
from blake3 import blake3

logger = logging.getLogger(__name__)
_SOURCE = Path(__file__).with_name("step.cpp")
_MADE = Path(__file__).resolve().parents[4] / "build" / "native"
_TORCH = Path(torch.__file__).parent
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
_PLACES = ("-isystem", str(_TORCH / "include"), "-L", str(_TORCH / "lib"), "-ltorch_cpu", "-lc10")


def path() -> Path:
    """Return where the library of this source and this torch lies, or would lie, wherever both are installed."""
    hasher = blake3(_SOURCE.read_bytes())
    hasher.update("\0".join((torch.__version__, sysconfig.get_platform(), *_FLAGS)).encode())
    return _MADE / f"step-{hasher.hexdigest(16)}.so"


@cache
def is_loaded() -> bool:
    """Load the library, once; return whether it is there and fits, and log a warning where it is not."""
    if not path().exists():
        logger.warning("the engine's step is computed call by call, more slowly: `make install` compiles it")
        return False
    try:
        torch.ops.load_library(path())  # type: ignore[no-untyped-call]
    except OSError as error:
        logger.warning("the engine's step is computed call by call: %s cannot be loaded (%s)", path(), error)
        return False
    return True


def compiler_here() -> str | None:
    """Return the machine's C++ compiler."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def compile_library() -> None:
    """Compile it, if it is not there, and remove that of an older source.

    Raises OSError where there is no compiler, or it fails."""
    made = path()
    if made.exists():
        return
    compiler = compiler_here()
    if compiler is None:
        raise OSError("there is no C++ compiler (c++, g++ or clang++)")
    made.parent.mkdir(parents=True, exist_ok=True)
    partial = made.with_suffix(f".{os.getpid()}.partial")  # two that compile at once are in nobody's way
    command = [compiler, str(_SOURCE), *_FLAGS, *_PLACES, "-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{shlex.join(command)}\n{done.stderr.strip()}")
    for older in made.parent.glob("step-*.so"):
        older.unlink()
    partial.replace(made)


def main() -> int:
    """Compile it and return 0, or say why not and return 1: the engine does without."""
    try:
        compile_library()
    except OSError as error:
        sys.stderr.write(f"The embedded engine will compute its steps call by call, more slowly: {error}\n")
        return 1
    return 0
