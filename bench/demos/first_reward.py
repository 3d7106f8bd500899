"""Seconds from a clone of the repository to the first reward, by what `docs/clients.md` says and nothing else.

    python -m bench first_reward

The page's own commands run in a fresh clone of this commit, which shares nothing with the checkout but what pip and uv
keep of former downloads. The service listens where the page says, so nothing else may."""

import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.table import Row, report

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/clients.md"
PORT = 8700
GOAL_S = 180.0
ENDS_S = 60.0
INSTALL, RUN = "make install", ".venv/bin/onward run"
READY = "onward serves at"


def blocks(text: str) -> list[str]:
    """Return the shell blocks of the page's first section, in order."""
    section = text.partition("## Five minutes")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def steps(text: str) -> tuple[str, str, str]:
    """Return the page's commands: to install, to serve, and to ask and say what became of the answer."""
    first, ask, say, *_ = blocks(text)
    install, serve = first.splitlines()
    if not (install.startswith(INSTALL) and serve.startswith(RUN)):
        raise SystemExit(f"first_reward: {PAGE} begins with other commands than {INSTALL!r} and {RUN!r}")
    until_rewarded = re.split(r"^\.venv/bin/onward rewards explain", say, flags=re.MULTILINE)[0]
    return install, serve, f"set -e\n{ask}{until_rewarded}"


@contextmanager
def serving(clone: Path, command: str, environment: dict[str, str]) -> Iterator[None]:
    """Run the service until the block ends; the block begins once the service says that it listens."""
    with subprocess.Popen(
        command.split(), cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as service:
        assert service.stdout is not None
        try:
            said = []
            for line in service.stdout:
                said.append(line)
                if READY in line:
                    break
            else:
                raise SystemExit(f"first_reward: the service ended:\n{''.join(said)}")
            yield
        finally:
            service.terminate()
            service.communicate(timeout=ENDS_S)


def measure(clone: Path) -> tuple[float, float, float]:
    """Return the seconds of the install, of the start, and from the question to its reward."""
    install, serve, ask = steps((clone / PAGE).read_text())
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    began_s = time.monotonic()
    subprocess.run(install.split(), cwd=clone, env=environment, check=True)
    installed_s = time.monotonic()
    with serving(clone, serve, environment):
        ready_s = time.monotonic()
        subprocess.run(["bash", "-c", ask], cwd=clone, env=environment, check=True)
        rewarded_s = time.monotonic()
    return installed_s - began_s, ready_s - installed_s, rewarded_s - ready_s


def main() -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            raise SystemExit(f"first_reward: something listens at port {PORT}, which the page's service takes")
    with tempfile.TemporaryDirectory() as parent:
        clone = Path(parent) / "onward"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        install_s, start_s, ask_s = measure(clone)
    total_s = install_s + start_s + ask_s
    rows = [
        Row("`make install`", install_s, "s"),
        Row("`onward run` until it listens", start_s, "s"),
        Row("from the question to its reward", ask_s, "s"),
        Row.at_most("from a clone to the first reward", total_s, "s", "the bar", total_s / GOAL_S, 1.0),
    ]
    report("first_reward", rows)


if __name__ == "__main__":
    main()
