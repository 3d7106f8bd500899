"""Whoever asks for what an extra brings, and has not installed it, is told which one and by which setting."""

import subprocess
import sys
from pathlib import Path

# A process of its own: here, other tests have imported what this one must not find.
WITHOUT = """
import asyncio, sys
sys.modules |= dict.fromkeys(("ray", "bm25s"))
from pathlib import Path
from types import SimpleNamespace
from core.errors import ConfigError
from core.settings import Settings
from onward.commands.stage_commands import _rollouts
from onward.wiring.stages import _rollouts as stage

def ray():
    del sys.modules["bm25s"]
    from onward.wiring.rollouts import roll_out
    asyncio.run(roll_out(nothing, Settings(rollouts={"ray": "auto"}), "", nothing, nothing))

nothing = SimpleNamespace()
commands = (lambda: _rollouts(Path("x")), lambda: _rollouts(Path("x"), demo="tiny"))
for ask in (lambda: stage(nothing, nothing), *commands, ray):
    try:
        ask()
    except ConfigError as error:
        print(error)
"""


def test_a_missing_extra_is_named_with_what_needs_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, cwd=Path("/"), check=False)
    assert done.returncode == 0, done.stderr
    needed = {"rollouts.enabled": "environments", "onward rollouts": "environments", "--demo": "environments"}
    assert [line.partition(" is not installed; ")[::2] for line in done.stdout.splitlines()] == [
        (f"{setting}: {'ray' if extra == 'ray' else 'bm25s'}", f"`uv pip install -e '.[{extra}]'` in the checkout")
        for setting, extra in {**needed, "rollouts.ray": "ray"}.items()
    ]
