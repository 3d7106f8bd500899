"""Where recorded sessions are replayed: in one working copy, or each in the task whose image its turns name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import aiohttp

from environments.errors import TaskError
from environments.fidelity.recorded import RecordedSession, Recordings
from environments.fidelity.replaying import Compared, Simulation, replay
from environments.harness.agent import HarnessSettings
from environments.harness.harness import Endpoint
from environments.harness.tools.offered import tools_of
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import SandboxSpec
from environments.tasks.harbor.folder import read_tasks
from environments.tasks.preparing import images_of, prepare


@dataclass(frozen=True)
class Chosen:
    """The chosen sessions: these, or else the newest of a workload, no more than so many."""

    sessions: tuple[str, ...] = ()
    workload: str | None = None
    most: int = 100


@dataclass(frozen=True)
class Places:
    """A repository as it was when the sessions began, or folders of tasks.

    `stands_for` is `[rollouts.images]`; `folder` keeps images and what sandboxes share."""

    workspace: Path | None
    tasks: tuple[Path, ...]
    folder: Path
    stands_for: Mapping[str, str] = field(default_factory=dict)

    async def specs(self) -> Mapping[str | None, SandboxSpec]:
        """Return sandboxes by the digest of their image; None stands for any session.

        Raises TaskError, InfrastructureFailure where an image cannot be had."""
        if self.workspace is not None:
            if not self.workspace.is_dir():
                raise TaskError(f"--workspace {self.workspace}: no folder")
            return {None: SandboxSpec(workspace=self.workspace)}
        images = await images_of(self.folder / "images", self.stands_for)
        prepared = [await prepare(task, images) for task in read_tasks(self.tasks)]
        return {task.image: task.spec for task in prepared}


class Replayed(NamedTuple):
    """What came of each call; the sessions that were left out, by reason; the versions that answered in the others."""

    compared: list[Compared]
    left_out: Mapping[str, int]
    versions: set[int | str]


async def replay_all(endpoint: Endpoint, chosen: Chosen, places: Places) -> Replayed:
    """Replay the chosen sessions one after another. Raises TaskError, InfrastructureFailure."""
    settings = HarnessSettings()
    simulation = Simulation({tool.name: tool for tool in tools_of(None)}, settings.output_characters, settings.commands)
    specs, compared = await places.specs(), list[Compared]()
    sandboxes = Bubblewrap(places.folder / "sandboxes")
    try:
        async with aiohttp.ClientSession() as http:
            recordings = Recordings(endpoint, http)
            for session in await _sessions(recordings, chosen):
                spec = specs.get(session.image, specs.get(None))
                if spec is None:
                    recordings.left_out["no task with its image"] += 1
                    continue
                async with await sandboxes.open(spec) as sandbox:
                    compared += await replay(session, sandbox, spec.workdir, simulation)
            return Replayed(compared, recordings.left_out, recordings.versions)
    finally:
        await sandboxes.close()


async def _sessions(recordings: Recordings, chosen: Chosen) -> list[RecordedSession]:
    if chosen.sessions:
        found = [await recordings.session(session_id) for session_id in chosen.sessions]
        return [session for session in found if session is not None]
    return [session async for session in recordings.sessions(chosen.workload, chosen.most)]
