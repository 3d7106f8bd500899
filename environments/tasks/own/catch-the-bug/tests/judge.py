"""Runs the agent's test against the library with its bug and without: only a test that tells them apart is rewarded."""

import shutil
import subprocess
import sys
from pathlib import Path

WRITTEN = Path("/app/tests/test_quotes.py")
BUG = "val[0] in ('\"', \"'\", '`'):"
MENDED = "val[0] in ('\"', \"'\", '`') and val[0] == val[-1]:"


def outcome(library: Path) -> int:
    command = [sys.executable, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_quotes.py"]
    return subprocess.run([*command, "--rootdir", library], cwd=library, timeout=50).returncode


def laid_out(name: str, mended: bool) -> Path:
    """Lay out the library as it was given to the agent, and the agent's test beside it."""
    folder = Path("/tmp") / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree("/app/sqlparse", folder / "sqlparse")
    helpers = folder / "sqlparse" / "utils.py"
    text = helpers.read_text().replace(MENDED, BUG)
    assert text.count(BUG) == 1, "the function was changed, which the task forbids"
    helpers.write_text(text.replace(BUG, MENDED) if mended else text)
    path = f"import sys\nsys.path.insert(0, {str(folder)!r})\n"
    (folder / "test_quotes.py").write_text(path + WRITTEN.read_text())
    return folder


def verdict() -> bool:
    if not WRITTEN.is_file():
        print(f"{WRITTEN} is not there")
        return False
    try:
        return outcome(laid_out("buggy", mended=False)) == 1 and outcome(laid_out("mended", mended=True)) == 0
    except AssertionError as error:
        print(error)
        return False


if __name__ == "__main__":
    Path("/logs/verifier/reward.txt").write_text(f"{int(verdict())}\n")
