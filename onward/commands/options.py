"""The arguments that commands share, and how settings are given with them."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from core.errors import ConfigError

Directory = Annotated[Path, Parameter(help="The service's directory: settings, log, store, weights.")]
DEFAULT_DIRECTORY = Path("data")
Set = Annotated[list[str] | None, Parameter(name="--set", help="A setting, as SECTION.NAME=VALUE.")]
From = Annotated[
    str | None, Parameter(name="--from", help="Only records logged at or after this time: 2026-11-21T15:00:00Z.")
]
To = Annotated[str | None, Parameter(name="--to", help="Only records logged before this time.")]
Where = Annotated[
    list[str] | None,
    Parameter(
        help="Only learn from turns with this: workload=NAME, namespace=NAME, version=12 or 12-40, tag=NAME=VALUE, "
        "outcome=NAME or outcome=NAME=VALUE; of several, with all.",
    ),
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="All that is known, as JSON.")]
FiguresAsJson = Annotated[bool, Parameter(name="--json", negative="", help="All figures, as JSON.")]
Host = Annotated[str | None, Parameter(help="The address to listen on; without it, `api.host` of the settings.")]
Port = Annotated[int | None, Parameter(help="The port to listen on; without it, `api.port` of the settings.")]
Verbose = Annotated[
    bool,
    Parameter(name=["--verbose", "-v"], negative="", help="Show each step of the start on a line of its own."),
]
OrderedVersion = Annotated[int, Parameter(help="The version that the order is about, as `onward policies` lists it.")]
Why = Annotated[str, Parameter(help="The reason, which is kept with the order.")]
Turn = Annotated[str, Parameter(help="The turn's id: `inference_id` in the answer to its request.")]
ReplayOut = Annotated[Path | None, Parameter(help="The directory for the candidate and its report, new or empty.")]
AsLived = Annotated[bool, Parameter(negative="", help="Repeat the updates that made a version, and compare digests.")]
ReplaySpec = Annotated[Path | None, Parameter(help="The reward spec; without it, the directory's own.")]
ReplaySeed = Annotated[int | None, Parameter(help="The learner's seed; without it, `learner.seed` of the settings.")]
FirstReplay = Annotated[Path, Parameter(help="The directory that a replay was written into, its `--out`.")]
SecondReplay = Annotated[Path, Parameter(help="The directory of another replay, to stand beside it.")]
DemoOutput = Annotated[Path, Parameter(help="The directory for the report; its `service/` is removed and made anew.")]
DemoSeconds = Annotated[float | None, Parameter(help="How long users work; without it, as long as this demo needs.")]
DemoSeed = Annotated[int, Parameter(help="What users do and the learner draws follows from it.")]
DemoShift = Annotated[bool, Parameter(help="Let users come to want something else midway.")]
DemoRate = Annotated[
    float | None, Parameter(help="Sessions a second; without it, what the engine carries on two cores.")
]
WorkKind = Annotated[
    Literal["chat", "agent"],
    Parameter(name="--for", help="Who asks: agents' turns hold all that they did before, and take longer to learn."),
]
ChildName = Annotated[str | None, Parameter(name="--child", show=False)]
"""The name by which its parent process finds this one, which then ends when the parent ends."""


def _read_key(_type: Any, tokens: Sequence[Token]) -> str:
    """Read a key from its option. Raises ConfigError."""
    if tokens[0].source == "env":
        return tokens[0].value
    path = Path(tokens[0].value)
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--key-file {path}: {error}") from error


Key = Annotated[
    str | None,
    Parameter(
        name="--key-file",
        converter=_read_key,
        env_var="ONWARD_KEY",
        show_env_var=False,
        help="File that holds an API key; without it ONWARD_KEY may hold one.",
    ),
]
"""The key for requests to a running service, read from a file, because everybody on a machine can see arguments."""


def overrides_of(assignments: list[str] | None) -> dict[str, str]:
    """`api.port=9000` as the environment would say it: ONWARD_API__PORT=9000. Raises ConfigError."""
    if not assignments:
        return {}
    from core.settings.secret import is_secret  # and with it all settings, which `--help` needs not

    overrides = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {assignment}: want SECTION.NAME=VALUE")
        if is_secret(name, value):
            variable = "ONWARD_" + name.upper().replace(".", "__")
            raise ConfigError(
                f"--set {name}: everybody on this machine sees arguments: set {variable}, or write it in onward.toml"
            )
        overrides["ONWARD_" + name.upper().replace(".", "__")] = value
    return overrides


def overrides_of_learner(file: Path | None) -> dict[str, str]:
    """Return a file's [learner] section as environment variables. Raises ConfigError."""
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
    return dict(_in_the_environments_words("ONWARD_LEARNER", learner))


def _in_the_environments_words(section: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        variable = f"{section}__{name.upper()}"
        if isinstance(value, dict):
            yield from _in_the_environments_words(variable, value)
        else:
            yield variable, value if isinstance(value, str) else json.dumps(value)


def images_of(bases: Sequence[str] | None) -> dict[str, str]:
    """Return what stands for which images, by `IMAGE=machine` or `IMAGE=FOLDER`. Raises ConfigError."""
    for each in bases or ():
        if not all(each.partition("=")):
            raise ConfigError(f"--base {each}: want IMAGE=machine or IMAGE=FOLDER")
    return {name: place for name, _, place in (each.partition("=") for each in bases or ())}


def refuse_beside(option: str, others: Mapping[str, object]) -> None:
    """Refuse options that exclude one another. Raises ConfigError naming the first of the others that was given."""
    for name, value in others.items():
        if value is not None:
            raise ConfigError(f"{name}: not with {option}")
