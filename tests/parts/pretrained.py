"""SmolLM2-135M-Instruct, for tests that need a model which somebody else trained."""

import os
from pathlib import Path

import pytest

_MADE = Path(__file__).resolve().parents[2] / "models" / "smollm2"


def smollm2() -> Path:
    """Return the model's directory: $ONWARD_SMOLLM2, else models/smollm2.

    Skip without one, or fail where ONWARD_REQUIRE_SERVICES=1."""
    directory = Path(os.environ.get("ONWARD_SMOLLM2") or _MADE)
    if not (directory / "config.json").exists():
        missing = f"{directory} is not there: make smollm2"
        if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return directory
