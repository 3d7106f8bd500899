"""The demo of rollouts begins a service anew, and leaves alone what it did not make."""

from pathlib import Path

import pytest

from onward.commands.rollouts.demo import run_demo


def test_a_service_that_lies_where_the_demo_is_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("turns of users")
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "old").touch()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        run_demo(tmp_path, "tiny", tmp_path / "file" / "images", {})
    assert (tmp_path / "store.db").read_text() == "turns of users"
    assert not (tmp_path / "service" / "old").exists()
