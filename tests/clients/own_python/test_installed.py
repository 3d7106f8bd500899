"""The Python client as its users install it: a wheel, in an environment without anything of ours."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
USE = """
import onward_client, pathlib, sys
assert pathlib.Path(onward_client.__file__).is_relative_to(sys.prefix), onward_client.__file__
assert (pathlib.Path(onward_client.__file__).parent / "py.typed").exists()
with onward_client.Onward("http://127.0.0.1:9", queue=sys.argv[1], close_timeout_s=0) as onward:
    assert "onward-client/python 0.1.0" in onward._connection.headers["user-agent"]
    print(onward.feedback("i", "accepted", True))
"""


def test_its_wheel_works_with_httpx_alone(tmp_path: Path) -> None:
    made, uv = tmp_path / "environment", [sys.executable, "-m", "uv"]

    def run(*arguments: str) -> None:
        subprocess.run([*uv, *arguments], check=True, cwd=tmp_path)

    run("build", "--quiet", "--wheel", str(ROOT / "clients/python"), "--out-dir", str(tmp_path))
    (wheel,) = tmp_path.glob("*.whl")
    run("venv", "--quiet", "--python", sys.executable, str(made))
    run("pip", "install", "--quiet", "--python", str(made), str(wheel))
    command = [str(made / "bin/python"), "-I", "-c", USE, str(tmp_path / "queue.db")]
    assert subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True).stdout.strip()
