"""The compiled step is optional: without a compiler, or with a library that does not load, the engine does without."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from serving.engines.local.native import library
from serving.engines.local.native.step import NativeStep


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(library, "_MADE", tmp_path / "native")
    library.is_loaded.cache_clear()
    yield tmp_path / "native"
    library.is_loaded.cache_clear()


def test_without_a_compiler_it_is_said_and_nothing_is_made(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    assert library.main() == 1
    assert "call by call, more slowly: there is no C++ compiler" in capsys.readouterr().err
    assert not NativeStep.fits(torch.empty(1))
    assert not library.is_loaded()
    said = [(line.levelname, line.message) for line in caplog.records]
    assert said == [("WARNING", "the engine's step is computed call by call, more slowly: `make install` compiles it")]


def test_a_source_that_does_not_compile_is_said_with_the_compilers_words(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "step.cpp"
    broken.write_text("this is no C++")
    monkeypatch.setattr(library, "_SOURCE", broken)
    assert library.main() == 1
    said = capsys.readouterr().err
    assert "call by call" in said
    assert library.compiler_here() is None or str(broken) in said
    assert not list(made.glob("*.so"))


def test_a_library_that_cannot_be_loaded_is_named_and_done_without(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library.path().parent.mkdir(parents=True)
    library.path().write_bytes(b"no library")
    assert not library.is_loaded()
    assert str(library.path()) in caplog.text


def test_where_torch_is_installed_changes_nothing(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = library.path()
    monkeypatch.setattr(library, "_TORCH", tmp_path)
    monkeypatch.setattr(library, "_PLACES", ("-isystem", str(tmp_path / "include")))
    assert library.path() == here


def test_another_source_or_torch_is_another_library(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = library.path()
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    newer = library.path()
    changed = tmp_path / "step.cpp"
    changed.write_bytes(library._SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(library, "_SOURCE", changed)
    assert len({here, newer, library.path()}) == 3
