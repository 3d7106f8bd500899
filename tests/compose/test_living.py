"""What docs/stack.md says of months with the stack: its settings, and its backup in an empty stack."""

from pathlib import Path

import pytest
from compose_stack import Stack
from compose_users import Users

pytestmark = [pytest.mark.compose, pytest.mark.deep, pytest.mark.timeout(2400)]
READ = """
from pathlib import Path
from onward.wiring.foundation import look_at_directory
batch = look_at_directory(Path("/data"))[1].learner.batch
print(batch.turns, batch.backlog_turns)
"""


def test_the_file_beside_it_is_read_and_the_environment_wins(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "onward.toml").write_text("[learner.batch]\nturns = 99\nbacklog_turns = 199\n")
    assert in_learner(stack, tmp_path, f"python -c '{READ}'").split() == ["16", "199"], "quick.yml says 16"
    (tmp_path / "onward.toml").write_text("[learner.batch]\nturn = 99\n")
    said = in_learner(stack, tmp_path, "python -m onward learn /data 2>&1 || echo ended")
    assert "learner.batch.turn" in said
    assert said.splitlines()[-1] == "ended"


def in_learner(stack: Stack, place: Path, command: str) -> str:
    """Run a command in a container like the learner's, with the settings of that place."""
    once = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "with-secrets", "learn", "sh", "-c", command)
    return stack.compose(*once, environment={"ONWARD_SETTINGS": str(place / "onward.toml")})


def test_a_backup_comes_back_in_an_empty_stack(stack: Stack, tmp_path: Path) -> None:
    with Users(stack) as users:
        users.wait_turns(40)
    before = users.check_kept()
    tmp_path.chmod(0o777)  # for the user of the containers
    once = ("run", "--rm", "--no-deps", "-T", "-v", f"{tmp_path}:/backups")
    tar = ("--entrypoint", "tar", "secrets", "-C", "/run/secrets/all")
    stack.compose(*once, "learn", "backup", "/data", "--into", "/backups/all")
    stack.compose(*once, *tar, "-cf", "/backups/secrets.tar", ".")
    stack.remove()
    stack.compose(*once, *tar, "-xf", "/backups/secrets.tar")
    stack.compose("up", "--detach", "--no-build", "--wait", "kafka", "postgres")
    stack.compose(*once, "learn", "restore", "/data", "--from", "/backups/all")
    stack.up()
    after = users.check_kept()
    assert after["newest"] >= before["newest"]
    with Users(stack) as more:  # with the keys of before
        more.wait_turns(10)
    more.check_kept()
