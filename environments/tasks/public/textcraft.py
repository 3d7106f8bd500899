"""Public tasks in Harbor's format from a registry: TextCraft, which `platoon-textcraft` on PyPI writes out itself.

Each is a game of crafting items by recipes, played by a command in the sandbox, and judged by a separate verifier that
replays the log of the game. They run unchanged; nothing of them is ours."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from environments.sandboxes.alone import alone
from environments.tasks.commands import said
from environments.tasks.public.interpreters import interpreter

_LOCK = Path(__file__).with_name("textcraft.lock")
_EXPORT_SECONDS = 300.0


async def textcraft(folder: Path, of_each_split: int = 2, python: str | None = None) -> Path:
    """Return a folder of the first tasks of both splits, written below `folder` where it is not there yet.

    Raises InfrastructureFailure, also where no Python 3.12 is found and `python` names none."""
    made = folder / f"textcraft-{_LOCK.stat().st_size}-{of_each_split}"
    async with alone(made.with_name(f"{made.name}.lock")):
        if not made.exists():
            program = await interpreter(folder / "interpreters", _LOCK, (3, 12), python)
            making = Path(tempfile.mkdtemp(dir=folder))
            command = [str(program), "-m", "platoon_textcraft.harbor", "export", "--variant", "original", "--force"]
            try:
                await said(
                    [*command, "--limit", str(of_each_split), "--out", str(making / "all")], _EXPORT_SECONDS, "machine"
                )
                (making / "all").rename(made)
            finally:
                await asyncio.to_thread(shutil.rmtree, making, ignore_errors=True)
    return made / "tasks"
