"""Executing recorded calls again, with the tools of our harness in a sandbox, and comparing what comes back."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from environments.fidelity.recorded import RecordedCall, RecordedSession
from environments.fidelity.shapes import shape_of
from environments.harness.context import cut
from environments.harness.execution import execute
from environments.harness.tools.tool import Bench, Commands, HarnessTool
from environments.sandboxes.sandbox import Sandbox

Likeness = Literal["equal", "same_shape", "other_shape", "no_tool", "not_recorded"]


@dataclass(frozen=True)
class Compared:
    """One call, executed again. Digests are of what the model was, or would be, shown (SHA-256).

    `no_tool`: the harness has none of that name; `not_recorded`: production did not tell what came back."""

    session_id: str
    call_id: str
    tool: str
    likeness: Likeness
    recorded_digest: str | None = None
    digest: str | None = None
    recorded_seconds: float | None = None
    seconds: float | None = None
    recorded_shape: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()


@dataclass(frozen=True)
class Simulation:
    """The tools of the simulation. `output_characters` is the most of a result that a model is shown."""

    tools: Mapping[str, HarnessTool]
    output_characters: int
    commands: Commands = field(default_factory=Commands)


async def replay(session: RecordedSession, sandbox: Sandbox, workdir: str, simulation: Simulation) -> list[Compared]:
    """Execute a session's calls in their order, those of one group together, in a sandbox that is as it was then.

    Raises InfrastructureFailure where the sandbox fails."""
    bench = Bench(sandbox, workdir, simulation.commands)
    compared: list[Compared] = []
    for _, calls in groupby(session.calls, key=lambda call: call.group):
        compared += await _group(session.session_id, list(calls), bench, simulation)
    return compared


async def _group(
    session_id: str, calls: Sequence[RecordedCall], bench: Bench, simulation: Simulation
) -> list[Compared]:
    known = [each for each in calls if each.call.name in simulation.tools]
    ran = (await execute([each.call for each in known], simulation.tools, bench)).calls if known else ()
    texts = {each.call.id: (cut(each.text, simulation.output_characters), each) for each in ran}
    compared = []
    for recorded in calls:
        if recorded.call.id not in texts:
            compared.append(Compared(session_id, recorded.call.id, recorded.call.name, "no_tool"))
            continue
        text, executed = texts[recorded.call.id]
        compared.append(_compared(session_id, recorded, text, executed.seconds))
    return compared


def _compared(session_id: str, recorded: RecordedCall, text: str, seconds: float) -> Compared:
    name, call_id = recorded.call.name, recorded.call.id
    if recorded.output is None:
        return Compared(session_id, call_id, name, "not_recorded", digest=_digest(text), seconds=seconds)
    before, now = shape_of(recorded.output), shape_of(text)
    likeness: Likeness = "same_shape" if before == now else "other_shape"
    return Compared(
        session_id=session_id,
        call_id=call_id,
        tool=name,
        likeness="equal" if recorded.output == text else likeness,
        recorded_digest=_digest(recorded.output),
        digest=_digest(text),
        recorded_seconds=recorded.seconds,
        seconds=seconds,
        recorded_shape=before,
        shape=now,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
