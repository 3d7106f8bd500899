"""A build hook that refuses to build a wheel of Onward, and lets an editable installation be one.

Its packages are `core`, `api` and other names that are everybody's in site-packages; and it reads models, reward specs
and the built documentation from its checkout."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NoWheel(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that Hatchling calls before it builds anything."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raise RuntimeError for anything but an editable installation."""
        if version != "editable":
            raise RuntimeError("Onward is run from its checkout (`make install`, `uv pip install -e .`), or as images")
