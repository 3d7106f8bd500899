"""The TypeScript client's own tests, under node, against services of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mortal_service
from mortal_service import MortalService, served_path
from packages import built, node


def test_its_tests_pass_and_the_service_was_told_everything_once(tmp_path: Path) -> None:
    package = built("typescript")
    environment = {
        **os.environ,
        "PYTHONPATH": served_path(),
        "ONWARD_TEST_DIRECTORY": str(tmp_path),
        "ONWARD_TEST_COMMAND": json.dumps([sys.executable, mortal_service.__file__]),
    }
    command = [node(), "--test", "dist/test/client.test.js"]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    compared = list(tmp_path.glob("*/given.json"))
    assert len(compared) == 1
    for file in compared:
        given, told = json.loads(file.read_text()), [one for one, _ in MortalService(file.parent).outcomes()]
        assert len(given) > 40
        assert set(given) <= set(told)
        assert len(told) - len(given) <= 1, "one may have been queued and not yet printed"
