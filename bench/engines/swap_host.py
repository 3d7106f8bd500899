"""The host of one SGLang server, as `onward serve` runs it, that also writes when each step of a swap started.

    python -m bench swap_host DIRECTORY URL STEPS

STEPS gets lines of: the system's monotonic clock in seconds, the step, the version."""

import sys
import time
from pathlib import Path

from core.ids import PolicyRef
from core.stages.rounds import Rounds
from onward.wiring.foundation import open_foundation
from serving.engines.host import EngineHost
from serving.engines.sglang.engine import SglangEngine
from serving.engines.sglang.swap import SwapStep

NAME = "engine-1"


def main(directory: Path, url: str, steps: Path) -> None:
    foundation = open_foundation(directory)
    with steps.open("a", buffering=1) as file:

        def note(step: SwapStep, version: PolicyRef) -> None:
            file.write(f"{time.monotonic()} {step} {version}\n")

        engine = SglangEngine(
            NAME,
            foundation.settings.serving.sglang,
            foundation.weights,
            foundation.blobs,
            foundation.model,
            foundation.layout.host(NAME),
            url=url,
            observe=note,
        )
        host = EngineHost(engine, foundation.store, foundation.settings.serving.cluster, foundation.clock)
        rounds = Rounds(NAME, host)
        while True:
            rounds.step(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
