"""The Python client as its users install it: a wheel, in an environment without anything of ours."""

import subprocess
import sys
from pathlib import Path

from shown_examples import commands, of_test

ROOT = Path(__file__).resolve().parents[3]
USE = """
import onward_client, pathlib, sys
assert pathlib.Path(onward_client.__file__).is_relative_to(sys.prefix), onward_client.__file__
assert (pathlib.Path(onward_client.__file__).parent / "py.typed").exists()
with onward_client.Onward("http://127.0.0.1:9", queue=sys.argv[1], close_timeout_s=0) as onward:
    assert "onward-client/python 0.1.0" in onward._connection.headers["user-agent"]
    print(onward.feedback("i", "accepted", True))
"""


def uv(*arguments: str, cwd: Path) -> None:
    subprocess.run([sys.executable, "-m", "uv", *arguments, "--quiet"], check=True, cwd=cwd)


def environment(directory: Path) -> Path:
    """Make an environment of nothing, and return its interpreter."""
    uv("venv", "--python", sys.executable, str(directory / "environment"), cwd=directory)
    return directory / "environment" / "bin" / "python"


def use(python: Path, program: str) -> None:
    command = [str(python), "-I", "-c", program, str(python.parent / "queue.db")]
    assert subprocess.run(command, check=True, cwd=python.parent, capture_output=True, text=True).stdout.strip()


def test_its_wheel_works_with_httpx_alone(tmp_path: Path) -> None:
    uv("build", "--wheel", str(ROOT / "clients/python"), "--out-dir", str(tmp_path), cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    python = environment(tmp_path)
    uv("pip", "install", "--python", str(python), str(wheel), cwd=tmp_path)
    use(python, USE)


def test_it_is_installed_as_its_page_says(tmp_path: Path) -> None:
    """Its README.md shows one command, which brings the official client, too."""
    python = environment(tmp_path)
    test = "tests/clients/own_python/test_installed.py::test_it_is_installed_as_its_page_says"
    (command,) = commands(of_test(test, "clients/python/README.md"))
    uv(*command, "--python", str(python), cwd=ROOT)
    use(python, f"import openai\n{USE}")
