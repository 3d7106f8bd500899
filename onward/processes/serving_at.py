"""The line that says a service is there, for who started it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from core.stages.start_steps import clear_line, since_start_s


def say_serving(urls: Sequence[str], root: Path) -> None:
    """Print where the service answers and how long its start took: in a line, or below one another on a terminal."""
    clear_line()
    took = f"after {since_start_s():.1f} s"
    if urls:
        first = urls[0]
        parts = [f"onward serves at {', '.join(urls)} {took}", f"clients: {first}/v1", f"console: {first}/"]
        parts.append(f"documentation: {first}/docs/")
    else:
        parts = [f"onward runs, without an API of its own, {took}"]
    print(*parts, f"directory: {root}", sep="\n  " if sys.stdout.isatty() else "  ", flush=True)
