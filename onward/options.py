"""What commands have in common: their arguments, and how settings are given with them."""

import json
import tomllib
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from core.errors import ConfigError

Directory = Annotated[Path, Parameter(help="The service's directory: settings, log, store, weights.")]
DEFAULT_DIRECTORY = Path("data")
Set = Annotated[list[str] | None, Parameter(name="--set", help="A setting, as SECTION.NAME=VALUE.")]
From = Annotated[str | None, Parameter(name="--from", help="What was logged from this time on: 2026-11-21T15:00:00Z.")]
To = Annotated[str | None, Parameter(name="--to", help="What was logged before this time.")]
ChildName = Annotated[str | None, Parameter(name="--child", show=False)]
"""By which the process that started this one looks for it; it then ends with that."""


def overrides_of(assignments: list[str] | None) -> dict[str, str]:
    """`api.port=9000` as the environment would say it: ONWARD_API__PORT=9000. Raises ConfigError."""
    overrides = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {assignment}: want SECTION.NAME=VALUE")
        overrides["ONWARD_" + name.upper().replace(".", "__")] = value
    return overrides


def overrides_of_learner(file: Path | None) -> dict[str, str]:
    """A file's [learner] section, in the environment's words. Raises ConfigError."""
    if file is None:
        return {}
    try:
        content = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    for name in content.keys() - {"learner"}:
        raise ConfigError(f"{file}: [{name}]: want [learner] alone")
    learner = content.get("learner")
    if not isinstance(learner, dict):
        raise ConfigError(f"{file}: want a [learner] section")
    return {
        f"ONWARD_LEARNER__{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in learner.items()
    }
