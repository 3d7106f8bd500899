"""`onward engine-arguments`, and the script that starts a server with what it wrote."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import ConfigError
from onward.cli import app
from onward.directory.layout import SHIPPED_MODEL
from serving.engines.sglang.adapters import room_for
from serving.engines.sglang.process import adapter_arguments, cpu_arguments

SCRIPT = Path(__file__).parents[3] / "deploy" / "image" / "with-arguments"
SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"
ODD = ["--served-model-name", 'it\'s $HOME `id` "x"\n*', "--json-model-override-args", '{"a": [1, "b c"]}', ""]


def tell(capsys: pytest.CaptureFixture[str], directory: Path, *options: str) -> str:
    app(["engine-arguments", str(directory), *options], result_action="return_value")
    return capsys.readouterr().out


def started(arguments: Path, *own: str) -> list[str]:
    """Return the arguments that a program has which the script starts."""
    command = [str(SCRIPT), str(arguments), sys.executable, "-c", SHOW, *own]
    return list(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def test_they_are_those_of_a_server_that_a_host_starts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = tmp_path / "service"
    plain = ["--model-path", str(SHIPPED_MODEL), *cpu_arguments("float32")]
    assert shlex.split(tell(capsys, directory)) == plain
    room = room_for(SHIPPED_MODEL, 4, ())
    assert room is not None
    lora = ("--set", "learner.lora.rank=4")
    assert shlex.split(tell(capsys, directory, *lora)) == [*plain, *adapter_arguments(room, "cpu")]
    card = ("--set", "serving.sglang.device=cuda", "--set", "serving.sglang.dtype=bfloat16")
    told = shlex.split(tell(capsys, directory, *lora, *card))
    assert told[2:4] == ["--dtype", "bfloat16"]
    assert told[-len(adapter_arguments(room, "cuda")) :] == adapter_arguments(room, "cuda")
    assert not directory.exists(), "asking makes nothing"


def test_a_program_is_started_with_each_as_it_was_set(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "arguments"
    file.write_text("--of before")
    said = tell(capsys, tmp_path, "--set", f"serving.sglang.arguments={json.dumps(ODD)}", "--file", str(file))
    assert said == ""
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    told = started(file, "--host", "a b", "--tp-size", "2")
    assert told[:4] == ["--host", "a b", "--tp-size", "2"], "the file's come last, so that settings win"
    assert told[4:6] == ["--model-path", str(SHIPPED_MODEL)]
    assert told[-len(ODD) :] == ODD


def test_nothing_is_started_without_the_file(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        started(tmp_path / "none")


def test_a_model_that_is_not_there_is_named_and_the_file_stays(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "arguments"
    file.write_text("--of before")
    with pytest.raises(ConfigError, match="nowhere"):
        tell(capsys, tmp_path, "--set", f"serving.model={tmp_path / 'nowhere'}", "--file", str(file))
    assert file.read_text() == "--of before"
