"""The models that learn as agents, and what each can begin to solve."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from environments.harness.agent import Settings as AgentSettings
from environments.harness.harness import Budget
from onward.commands.demo import PRETRAINED_NAME, pretrained_settings
from onward.commands.rollouts.demo import with_tools

CONTEXT_TOKENS: Final = 512


@dataclass(frozen=True)
class Pupil:
    """A model, the harness by which it works, and whether its tasks say the calls that solve them."""

    model: str
    settings: Callable[[int, Path], Mapping[str, str]]
    """Those of its service, by the seed and a folder that is its own."""
    agent: AgentSettings
    budget: Budget
    parallel: int  # episodes at once
    is_told: bool


def _tiny(seed: int, _: Path) -> Mapping[str, str]:
    return {"ONWARD_LEARNER__SEED": str(seed)}


def _smollm2(seed: int, folder: Path) -> Mapping[str, str]:
    return {**pretrained_settings(seed), "ONWARD_SERVING__MODEL": str(with_tools(folder / "model"))}


PUPILS: Final = {
    "tiny": Pupil(
        "onward-tiny",
        _tiny,
        AgentSettings(72, tool_set="lines", at_limit="stop"),
        Budget(tokens=1500, calls=8, critical_path_seconds=60.0, context_tokens=CONTEXT_TOKENS),
        parallel=4,
        is_told=False,
    ),
    PRETRAINED_NAME: Pupil(
        PRETRAINED_NAME,
        _smollm2,
        AgentSettings(
            72, tool_set="lines", tools=("edit_file", "done"), must_call=True, at_limit="stop", temperature=0.7
        ),
        Budget(tokens=600, calls=2, critical_path_seconds=120.0, context_tokens=CONTEXT_TOKENS),
        parallel=8,
        is_told=True,
    ),
}
