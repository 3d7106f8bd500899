"""A profile as files: `onward.toml`, and the environment of `docker-compose.gpu.yml`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.profile import ChosenSetting, ModelShape, Profile
from core.settings import PREFIX

COMPOSE_CARDS = 3
"""For two engines and the learner."""
_OF_ITS_OWN = ("serving.engine", "serving.sglang.", "learner.device", "learner.enabled", "learner.compute.precision")
"""Settings that the compose files give themselves."""


def as_toml(model: Path, shape: ModelShape, profile: Profile) -> str:
    """Return the settings file: each value with its reason above it."""
    named = ChosenSetting("serving.model_name", model.name, "the name that clients use")
    given = ChosenSetting("serving.model", str(model), f"{shape.kind}, {shape.parameters:,} parameters")
    choices = sorted([given, named, *profile.choices], key=lambda choice: choice.setting.split(".")[:-1])
    lines = [
        "# Made by `onward init`; docs/your-own-model.md says how it chooses, docs/settings.md what else there is."
    ]
    section = ""
    for choice in choices:
        above, _, name = choice.setting.rpartition(".")
        if above != section:
            section = above
            lines += ["", f"[{section}]"]
        lines += [f"# {choice.why}"] if choice.why else []
        lines.append(f"{name} = {_toml(choice.value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Return a value as TOML writes it: JSON but for small numbers' exponents, which are the same in both."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def as_compose_env(model: Path, profile: Profile) -> str:
    """Return what `docker compose --env-file` reads: docker-compose.gpu.yml's variables, and settings by name."""
    sglang = profile.settings.serving.sglang
    fraction = sglang.arguments[sglang.arguments.index("--mem-fraction-static") + 1]
    lines = ["# Made by `onward init` for docker-compose.gpu.yml; docs/your-own-model.md", f"ONWARD_MODEL={model}"]
    lines += [f"ONWARD_MODEL_NAME={model.name}", f"ONWARD_DTYPE={sglang.dtype}", f"ONWARD_MEMORY_FRACTION={fraction}"]
    given = Profile(tuple(_not_of_its_own(profile)), profile.expected)
    lines += [f"{name}={value}" for name, value in as_variables(given).items()]
    return "\n".join(lines) + "\n"


def _not_of_its_own(profile: Profile) -> Iterator[ChosenSetting]:
    return (choice for choice in profile.choices if not choice.setting.startswith(_OF_ITS_OWN))


def as_variables(profile: Profile) -> dict[str, str]:
    """Return the settings as environment variables."""
    return {f"{PREFIX}{each.setting.upper().replace('.', '__')}": _toml(each.value) for each in profile.choices}
