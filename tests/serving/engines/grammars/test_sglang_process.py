"""An SGLang whose masks might differ from those that the learner makes again is refused by name."""

import sys
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.grammars.library import VERSION
from core.settings import SglangSettings
from serving.engines.sglang.process import EngineProcess, cpu_arguments


def interpreter(directory: Path, script: str) -> Path:
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("script", ["echo 1.0.0", "exit 1"])
def test_another_library_is_refused(tmp_path: Path, script: str) -> None:
    python = interpreter(tmp_path, script)
    with pytest.raises(ConfigError, match=f"serving.sglang.python.*llguidance=={VERSION}"):
        EngineProcess(SglangSettings(python=python), tmp_path / "sglang.log")


def test_the_same_library_is_taken_and_asked_for(tmp_path: Path) -> None:
    EngineProcess(SglangSettings(python=Path(sys.executable)), tmp_path / "sglang.log")
    options = cpu_arguments("float32")
    assert options[options.index("--grammar-backend") + 1] == "llguidance"
