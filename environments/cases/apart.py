"""How a process of its own runs a module of ours: this very copy, wherever it is called, and nothing of a suite's."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve()


def command_of(module: str) -> tuple[str, ...]:
    """Return the command that runs a module's `main`. It imports nothing from where it is called (`-I`)."""
    return sys.executable, "-I", str(_HERE), module


def _run(module: str) -> None:
    installed = [place for place, path in enumerate(sys.path) if path.endswith("-packages")]
    sys.path.insert(min(installed, default=len(sys.path)), str(_HERE.parents[2]))  # before another copy of ours
    import_module(module).main()


if __name__ == "__main__":
    _run(sys.argv[1])
