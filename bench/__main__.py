"""The command that runs a benchmark by its name, whatever room it stands in: `python -m bench NAME [ARGUMENTS]`."""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def modules() -> dict[str, str]:
    """Return the module of each file in a room, by the file's name."""
    return {path.stem: f"bench.{path.parent.name}.{path.stem}" for path in sorted(ROOT.glob("*/*.py"))}


def main() -> None:
    known = modules()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in known:
        sys.exit(f"bench: {name or 'no name'} is none of {', '.join(known)}")
    del sys.argv[1]
    runpy.run_module(known[name], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
