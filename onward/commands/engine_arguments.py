"""`onward engine-arguments`: what an SGLang server that somebody else starts is started with."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from onward.wiring.engines import engine_arguments
from onward.wiring.foundation import look_at_directory


def tell(directory: Path, overrides: Mapping[str, str], file: Path | None) -> None:
    """Print the arguments in one line, quoted as for a shell, or write them to `file`, which is whole at any time.

    Makes nothing else. Raises ConfigError, OSError."""
    line = shlex.join(engine_arguments(look_at_directory(directory, overrides)[1])) + "\n"
    if file is None:
        print(line, end="")
        return
    draft = file.with_name(f"{file.name}.new")
    draft.write_text(line)
    draft.rename(file)
