"""The learner's update against TRL's loss and optimizer step, on the same answers: time and peak memory.

    python -m bench learner_speed

It is also compared with itself with each turn of a session on its own. 64 turns of the lengths that the demo has.
TRL gets finished tensors, in micro-batches of turns of like length and of the size that is fastest for it; ours
starts with scored turns, judges and records. Before anything is timed both take a step from the same weights, and
must agree on the loss and on the norm of the gradient. Peak memory is of a process of its own: by how much it grows
from when all is loaded to the end of a step."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import torch

from bench.deltas.delta_peak import memory
from bench.table import Row, interleave, report
from bench.updates.learner_step import AGREEMENT, MODEL, make_batch, timed
from bench.updates.trl_step import TrlStep
from core.ids import SessionId
from core.settings import AdmissionSettings, AdvantageSettings, LearnerSettings
from learner.sequences.scored import ScoredTurn
from learner.updates.state import make_state
from learner.updates.update import update

SETTINGS = LearnerSettings(
    advantage=AdvantageSettings(baseline="raw"), admission=AdmissionSettings(max_divergence=1e9, min_ess=0.0)
)  # rewards are the advantages
SIZES = (4, 8, 16, 64)
ROUNDS = 15
GOAL = 1.25
Step = Callable[[], object]


def alone(batch: list[ScoredTurn]) -> list[ScoredTurn]:
    """Return the same turns, each in a session of its own."""

    def apart(number: int, scored: ScoredTurn) -> ScoredTurn:
        return replace(scored, turn=msgspec.structs.replace(scored.turn, session_id=SessionId(f"alone-{number}")))

    return [apart(number, scored) for number, scored in enumerate(batch)]


def contenders() -> dict[str, Step]:
    batch = make_batch(0)
    ours, each, trl = make_state(MODEL, SETTINGS), make_state(MODEL, SETTINGS), TrlStep(MODEL, SETTINGS)
    parted = alone(batch)
    steps: dict[str, Step] = {
        "ours": lambda: update(ours, batch, SETTINGS),
        "ours, each turn alone": lambda: update(each, parted, SETTINGS),
    }
    for size in SIZES:
        batches = trl.batches(batch, size)
        steps[f"TRL, {size} at a time"] = partial(trl.step, batches)
    return steps


def agree() -> None:
    batch = make_batch(0)
    metrics = update(make_state(MODEL, SETTINGS), batch, SETTINGS).metrics
    for size in (SIZES[0], SIZES[-1]):
        trl = TrlStep(MODEL, SETTINGS)
        loss, norm = trl.step(trl.batches(batch, size))
        for name, mine, other in (("loss", metrics["loss"], loss), ("gradient norm", metrics["gradient_norm"], norm)):
            assert abs(mine - other) <= AGREEMENT * max(1.0, abs(other)), f"{name}: {mine} here, {other} in TRL"


def growth_mib(name: str) -> float:
    """Measure the growth of memory in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench.updates.learner_speed", name], capture_output=True, text=True, check=True
    )
    return float(ran.stdout.split()[-1])


def print_growth(name: str) -> None:
    step = contenders()[name]
    before = memory("VmRSS")
    step()
    print((memory("VmHWM") - before) / 2**20)


def main() -> None:
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        print_growth(sys.argv[1])
        return
    agree()
    steps = contenders()
    times = {name: timed(step) for name, step in steps.items()}
    interleave(times, 2)
    found = interleave(times, ROUNDS)
    best = min((name for name in found if name.startswith("TRL")), key=lambda name: found[name])
    measured = ("ours", "ours, each turn alone", best, f"TRL, {SIZES[-1]} at a time")
    grown = {name: growth_mib(name) for name in measured}
    alone = found["ours, each turn alone"]
    rows = [
        Row("update, 64 turns", found["ours"], "CPU ms"),
        Row.at_least(f"{best}, the same tensors", found[best], "CPU ms", "each turn alone", found[best] / alone, GOAL),
        *(
            Row.at_least(name, found[name], "CPU ms", "update", found[name] / found["ours"], GOAL)
            if name == best
            else Row(name, found[name], "CPU ms", "update", found[name] / found["ours"])
            for name in found
            if name != "ours"
        ),
        *(Row(f"{name}: growth", mib, "MiB", "update", mib / grown["ours"]) for name, mib in grown.items()),
    ]
    report("learner_speed", rows)


if __name__ == "__main__":
    main()
