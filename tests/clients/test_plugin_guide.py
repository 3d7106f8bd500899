"""The commands of docs/plugins.md work, and its tables name what there is."""

import re
import subprocess
from pathlib import Path

from api_harness import MODEL, serve, wait_for

from core.reward_spec import load_reward_spec

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "plugins.md").read_text()
STRICT = 'set -euo pipefail\ncurl() { command curl -sS --fail-with-body "$@"; echo; }\n'


def test_each_command_works_against_a_service(tmp_path: Path) -> None:
    setting, *rest = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    assert len(rest) == 4
    with serve(tmp_path / "service", spec=load_reward_spec(ROOT / "onward" / "rewards.toml")) as service:
        here = setting.replace("http://localhost:8700", service.url).replace("onward-tiny", MODEL)
        script = STRICT + here + "".join(rest)
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        told = GUIDE.count("say '{") - 1  # one is told twice
        outcomes = wait_for(lambda: len(found := service.outcomes()) > told and found)
        assert len(outcomes) == told + 1, "and one is a withdrawal"
        (turn,) = service.all_turns()
        assert (turn.session_id, turn.harness_version) == ("window-7f3a", "my-plugin/1.2")


def test_it_names_each_header_that_is_read_and_written() -> None:
    sources = "".join((ROOT / "api" / path).read_text() for path in ("turns/intake.py", "protocols/onward_info.py"))
    names = set(re.findall(r'b"(x-[a-z-]+)"', sources))
    assert len(names) > 12
    assert not {name for name in names if f"`{name}" not in GUIDE}
