"""Tasks in Harbor's format are read whole, or refused with the name of what is amiss."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from types import UnionType
from typing import get_args, get_origin

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel
from task_folders import write_task

from environments.errors import TaskError
from environments.tasks.harbor.folder import read_task, read_tasks
from environments.tasks.harbor.schema import TaskSettings

EVERY_FIELD = """
schema_version = "1.4"
source = "a data set"
artifacts = ["/app/out", { source = "/app/log", exclude = ["*.tmp"] }]

[task]
name = "onward/all-fields"
version = "2"
description = "Uses every field that is honoured"
keywords = ["a"]
authors = [{ name = "A", email = "a@example.org" }]

[metadata]
anything = { at = ["all"] }

[agent]
timeout_sec = 12
user = "root"
network_mode = "no-network"

[verifier]
timeout_sec = 34.5
user = 0
environment_mode = "separate"
env = { KEY = "${SECRET:-none}" }

[verifier.environment]
network_mode = "no-network"
memory_mb = 64

[[verifier.collect]]
command = "true"
service = "main"
timeout_sec = 3.0

[environment]
network_mode = "no-network"
build_timeout_sec = 60.0
docker_image = "python:3.11-slim"
os = "Linux"
cpus = 0.5
memory_mb = 512
storage_mb = 256
gpus = 0
mcp_servers = []
env = { PLACE = "here" }
workdir = "/srv"

[environment.healthcheck]
command = "true"
interval_sec = 0.1
timeout_sec = 1.0
start_period_sec = 0.0
start_interval_sec = 0.1
retries = 2

[solution]
env = { HINT = "x" }
"""


def test_every_field_that_is_honoured_is_read(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path / "t", EVERY_FIELD))
    settings = task.settings
    assert (task.name, settings.agent.timeout_sec, settings.verifier.timeout_sec) == ("onward/all-fields", 12, 34.5)
    assert (settings.environment.cpus, settings.environment.memory_mb, settings.environment.storage_mb) == (
        0.5,
        512,
        256,
    )
    assert settings.verifier.separate
    assert not settings.environment.networked
    assert settings.metadata == {"anything": {"at": ["all"]}}


def test_older_schemas_are_read_as_the_newest(tmp_path: Path) -> None:
    old = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = true\n'
    settings = read_task(write_task(tmp_path / "t", old)).settings
    assert (settings.schema_version, settings.environment.memory_mb, settings.environment.storage_mb) == (
        "1.0",
        2048,
        512,
    )
    assert settings.environment.networked


def test_without_a_word_there_is_no_network(tmp_path: Path) -> None:
    assert not read_task(write_task(tmp_path / "t")).settings.environment.networked


REFUSED = {
    "environment.os": '[environment]\nos = "windows"',
    "environment.network_mode": '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]',
    "environment.allowed_hosts": '[environment]\nallowed_hosts = ["a.org"]',
    "environment.gpus": "[environment]\ngpus = 1",
    "environment.gpu_types": '[environment]\ngpu_types = ["H100"]',
    "environment.tpu": '[environment]\ntpu = { type = "v6e", topology = "2x2" }',
    "environment.mcp_servers": '[[environment.mcp_servers]]\nname = "m"\nurl = "http://m"',
    "environment.skills_dir": '[environment]\nskills_dir = "/skills"',
    "agent.user": '[agent]\nuser = "agent"',
    "agent.network_mode": '[agent]\nnetwork_mode = "public"',
    "verifier.user": "[verifier]\nuser = 1000",
    "verifier.network_mode": '[environment]\nnetwork_mode = "public"\n[verifier]\nnetwork_mode = "no-network"',
    "verifier.environment": '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1',
    "verifier.environment.gpus": "[verifier.environment]\ngpus = 1",
    "verifier.collect.0.service": '[[verifier.collect]]\ncommand = "true"\nservice = "database"',
    "verifier.collect.0.user": '[[verifier.collect]]\ncommand = "true"\nuser = "postgres"',
    "artifacts.0": 'artifacts = ["../etc/passwd"]',
    "artifacts.0.destination": 'artifacts = [{ source = "/a", destination = "b" }]',
    "artifacts.0.service": 'artifacts = [{ source = "/a", service = "database" }]',
    "steps": '[[steps]]\nname = "one"',
    "multi_step_reward_strategy": 'multi_step_reward_strategy = "mean"',
    "multi_step_reward_mode": 'multi_step_reward_mode = "mean"',
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_not_honoured_is_refused_by_its_name(tmp_path: Path, field: str) -> None:
    with pytest.raises(TaskError, match=rf"{field} is not honoured: .+"):
        read_task(write_task(tmp_path / "t", REFUSED[field]))


@pytest.mark.parametrize("file", ["trajectory.json", "environment/docker-compose.yaml", "tests/docker-compose.yaml"])
def test_files_that_are_not_honoured_are_refused(tmp_path: Path, file: str) -> None:
    with pytest.raises(TaskError, match=f"{file} is not honoured"):
        read_task(write_task(tmp_path / "t", files={file: "{}"}))


def tables(model: type[BaseModel], place: tuple[str, ...] = ()) -> dict[tuple[str, ...], type[BaseModel]]:
    """Return the tables of task.toml by their places, lists of tables left out."""
    found = {place: model}
    for name, field in model.model_fields.items():
        alternatives = get_args(field.annotation) if get_origin(field.annotation) is UnionType else (field.annotation,)
        for each in alternatives:
            if isinstance(each, type) and issubclass(each, BaseModel):
                found |= tables(each, (*place, name))
    return found


TABLES = tables(TaskSettings)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)


@given(st.sampled_from(sorted(TABLES)), NAMES, st.sampled_from(["1", '"text"', "true", "[1]", "{ a = 1 }"]))
def test_an_unknown_field_is_refused_by_its_name(place: tuple[str, ...], name: str, value: str) -> None:
    assume(name not in TABLES[place].model_fields and name not in ("version", "memory", "storage"))
    header = f"[{'.'.join(place)}]\n" if place else ""
    with TemporaryDirectory() as folder:
        write_task(Path(folder), f"{header}{name} = {value}\n")
        with pytest.raises(TaskError, match=rf"{re.escape('.'.join((*place, name)))} is unknown"):
            read_task(Path(folder))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("not toml", "task.toml: "),
        ('[agent]\ntimeout_sec = "long"', "agent.timeout_sec: "),
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec: "),
        ("[verifier]\ntimeout_sec = inf", "verifier.timeout_sec: "),
        ('[task]\nname = "no organisation"', "task.name: "),
        ('[environment]\nmemory = "much"', "environment: .*is no size"),
        ('[environment]\nmemory = "1G"\nmemory_mb = 5', "memory and memory_mb say different things"),
        ('schema_version = "9.0"', "schema_version: "),
    ],
)
def test_malformed_settings_are_told_of(tmp_path: Path, settings: str, told: str) -> None:
    with pytest.raises(TaskError, match=told):
        read_task(write_task(tmp_path / "t", settings))


def test_an_instruction_that_is_no_text_is_told_of(tmp_path: Path) -> None:
    (write_task(tmp_path / "t") / "instruction.md").write_bytes(b"Do \xff.")
    with pytest.raises(TaskError, match=r"t: instruction\.md is no UTF-8: .*0xff"):
        read_task(tmp_path / "t")


@pytest.mark.parametrize("file", ["task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile"])
def test_a_missing_file_is_told_of(tmp_path: Path, file: str) -> None:
    folder = write_task(tmp_path / "t")
    (folder / file).unlink()
    with pytest.raises(TaskError, match=file):
        read_task(folder)


def test_the_digest_covers_every_file(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t", files={"solution/solve.sh": "true\n", "notes/a.txt": "a"})
    digests = {read_task(folder).digest}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_text()
        path.write_text(content + "\n# more\n")
        digests.add(read_task(folder).digest)
        path.write_text(content)
    (folder / "tests/test.sh").chmod(0o755)
    digests.add(read_task(folder).digest)
    assert len(digests) == 8
    (folder / "tests/test.sh").chmod(0o644)
    assert read_task(folder).digest in digests


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    (folder / "tests/secret").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match="leads out of the task's folder"):
        read_task(folder)
    (folder / "tests/secret").unlink()
    (folder / "task.toml").unlink()
    (folder / "task.toml").symlink_to("/proc/self/environ")  # before anything of it is read, and told
    with pytest.raises(TaskError, match="leads out of the task's folder"):
        read_task(folder)


def test_what_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    with (folder / "environment/large").open("wb") as file:
        file.truncate(257 << 20)
    with pytest.raises(TaskError, match="more than 256 MiB"):
        read_task(folder)
    with pytest.raises(TaskError, match="recursion"):
        read_task(write_task(tmp_path / "deep", "metadata.a = " + "[" * 9_000))


def test_folders_of_tasks_are_read_in_order_and_names_are_unique(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_task(tmp_path / "set" / name)
    assert [task.name for task in read_tasks([tmp_path / "set"])] == ["a", "b"]
    write_task(tmp_path / "other" / "a")
    with pytest.raises(TaskError, match="is named a too"):
        read_tasks([tmp_path / "set", tmp_path / "other"])
    with pytest.raises(TaskError, match=r"no task.toml"):
        read_tasks([tmp_path])
