"""Commands that read a past refuse what cannot be, and leave it as it was."""

from pathlib import Path

import pytest
from kept_world import append, past

from core.errors import ConfigError
from onward.replays.as_lived import prove
from onward.replays.history import require_directory
from onward.replays.replay import replay_log


def test_a_directory_in_which_no_service_has_run_is_left_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no service has run in it"):
        prove(tmp_path, None, {})
    assert list(tmp_path.iterdir()) == []


def test_of_a_service_whose_log_and_store_are_elsewhere_nothing_needs_to_be_there(tmp_path: Path) -> None:
    require_directory(tmp_path, {"ONWARD_MODE": "distributed"})


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("logged") / "service"
    append(directory, past(2))
    return directory


@pytest.mark.parametrize("was_there", [False, True])
def test_a_replay_that_is_refused_amid_its_work_leaves_nothing(service: Path, tmp_path: Path, was_there: bool) -> None:
    out = tmp_path / "out"
    if was_there:
        out.mkdir()
    nowhere = {"ONWARD_LEARNER__ADMISSION__KEEP_OUT": str(tmp_path / "nowhere")}
    with pytest.raises(ConfigError, match="nowhere"):
        replay_log(service, out, None, None, overrides=nowhere)
    assert list(tmp_path.rglob("*")) == ([out] if was_there else [])


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_in_the_place_of_the_candidates_directory_is_named(service: Path, tmp_path: Path, inside: bool) -> None:
    file = tmp_path / "file"
    file.write_text("somebody's")
    out = file / "out" if inside else file
    with pytest.raises(ConfigError, match=f"--out {out}: "):
        replay_log(service, out, None, None)
    assert file.read_text() == "somebody's"


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (["user=ada"], "--where user=ada: want namespace=…, workload=…, version=…, tag=…, outcome=…"),
        (["workload"], "--where workload: want namespace=…"),
        (["version=9-2"], "--where version=9-2: 9 comes after 2"),
        (["tag=blue"], "--where tag=blue: want NAME=VALUE"),
        (["outcome=accepted="], "--where outcome=accepted=: want NAME or NAME=VALUE"),
        (["workload=ask", "workload=write"], "--where workload=write: a turn has one workload, and ask was said"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused_by_name(
    service: Path, tmp_path: Path, where: list[str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        replay_log(service, tmp_path / "out", None, None, where=where)
    assert list(tmp_path.iterdir()) == []
