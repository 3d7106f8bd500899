"""Whoever asks for what an extra brings, and has not installed it, is told which one and by which setting."""

import subprocess
import sys
from pathlib import Path

import pytest

# A process of its own: here, other tests have imported what this one must not find.
WITHOUT = """
import asyncio, sys
sys.modules |= dict.fromkeys(sys.argv[1].split())
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from core.errors import ConfigError
from core.settings import Settings
from onward.commands.eval_commands import _workplace
from onward.commands.stage_commands import _rollouts
from onward.replays.evals import _agents
from onward.wiring.releases import open_attempts
from onward.wiring.stages import _rollouts as stage

nothing = SimpleNamespace()
asks = {
    "stage": lambda: stage(nothing, nothing),
    "gate": lambda: open_attempts(nothing, nothing, nothing),
    "workplace": lambda: _workplace(Path("x"), []),
    "agents": lambda: _agents(nothing, nothing),
    "command": lambda: _rollouts(Path("x")),
    "demo": lambda: _rollouts(Path("x"), demo="tiny"),
}
if "ray" in sys.modules:
    from onward.wiring.rollouts import roll_out
    settings = Settings(rollouts={"ray": "auto"})
    asks = {"ray": lambda: asyncio.run(roll_out(nothing, settings, "", nothing, nothing))}
for name, ask in asks.items():
    try:
        ask()
    except ConfigError as error:
        print(f"{name}: {error}")
"""
NEEDED_BY = {
    "stage": "rollouts.enabled",
    "gate": "release.evals.suite: it has tasks for agents",
    "workplace": "--work",
    "agents": "--work",
    "command": "onward rollouts",
    "demo": "--demo",
}


def told_without(*modules: str) -> list[str]:
    command = [sys.executable, "-c", WITHOUT, " ".join(modules)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path("/"), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("modules", "extra", "needed_by"),
    [
        (("bm25s", "tree_sitter"), "environments", NEEDED_BY),
        (("ray",), "ray", {"ray": "rollouts.ray"}),
    ],
)
def test_a_missing_extra_is_named_with_what_needs_it(
    modules: tuple[str, ...], extra: str, needed_by: dict[str, str]
) -> None:
    told = told_without(*modules)
    assert [line.partition(" is not installed; ")[2] for line in told] == [
        f"`uv pip install -e '.[{extra}]'` in the checkout"
    ] * len(needed_by)
    for (name, setting), line in zip(needed_by.items(), told, strict=True):
        assert line.startswith(f"{name}: {setting}: "), line
