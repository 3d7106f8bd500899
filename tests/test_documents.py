"""The documents say what is."""

import inspect
import re
from pathlib import Path

from pydantic import BaseModel

from core import reward_spec, settings, telemetry
from serving.engines.sglang.swap import drawing

ROOT = Path(__file__).resolve().parent.parent


def models(module: object) -> list[type[BaseModel]]:
    return [
        model
        for _, model in inspect.getmembers(module, inspect.isclass)
        if issubclass(model, BaseModel)
        and model.__module__.startswith(getattr(module, "__name__", ""))
        and model.model_fields
    ]


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    missing = [
        f"{model.__name__}.{field}"
        for module in (settings, reward_spec)
        for model in models(module)
        for field in model.model_fields
        if f"`{field}`" not in text
    ]
    assert not missing


def test_every_metric_is_documented() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    names = {metric.name for metric in telemetry.REGISTRY.collect()}
    assert not {name for name in names if f"`{name}" not in text}


def test_the_readme_names_every_folder_and_command() -> None:
    text = (ROOT / "README.md").read_text()
    folders = ("core", "api", "ingest", "scoring", "learner", "serving", "kernels", "onward", "simulator", "models")
    assert not [folder for folder in folders if f"{folder}/" not in text]
    assert "make demo" in text
    assert "make test" in text


def test_documents_link_to_what_exists() -> None:
    broken = []
    for document in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            if not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)}: {target}")
    assert not broken


def test_the_swap_is_drawn_as_it_is() -> None:
    assert drawing() in (ROOT / "docs" / "architecture.md").read_text()
