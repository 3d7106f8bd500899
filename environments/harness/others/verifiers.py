"""The harness of an environment of `verifiers`: its own loop, tools and users, with the model that we serve.

What the environment says of the rollout is written into the sandbox, where the tests of a task would write theirs."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import aiohttp

from environments.errors import InfrastructureFailure, OutOfTime, TaskError
from environments.harness.asker import SESSION, asker_headers
from environments.harness.harness import Budget, Endpoint, HarnessRun
from environments.harness.others.gateway import Gateway
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.adapters.verifiers_process import VerifiersEnvironment, Wanted
from environments.tasks.rewards import REWARD, TOLD
from environments.tasks.task import Task


class VerifiersHarness:
    """Works on the tasks of the environments that are wanted; each is loaded when it is first worked on.

    The sandbox is not shown to the model: the environment has places of its own. It asks through a gateway: the library
    names sessions of its own, of which the service is told nothing else. It is to be closed."""

    name = "verifiers"
    version = "0.4.0"
    folders: Mapping[str, Path] = MappingProxyType({})

    def __init__(self, wanted: Sequence[Wanted], folder: Path, workload: str = "agent") -> None:
        """Take environments of different names; `folder` keeps the interpreter of the library."""
        self._wanted, self._folder = {each.name: each for each in wanted}, folder
        self._workload = workload
        self._loaded: dict[str, VerifiersEnvironment] = {}
        self._loading = asyncio.Lock()

    async def close(self) -> None:
        """End the processes of the environments. Closing twice is harmless."""
        for environment in self._loaded.values():
            await environment.close()

    async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, budget: Budget) -> HarnessRun:
        """Let the environment make one rollout.

        The budget is the environment's own; of ours, none is known to it. Raises OutOfTime where its time was over,
        InfrastructureFailure where it cannot be loaded or fails, or the service did not answer its last requests."""
        environment = await self._environment(task.metadata["environment"])
        headers = asker_headers(self, task, endpoint, self._workload)
        began = time.monotonic()
        async with aiohttp.ClientSession() as http:
            gateway = Gateway(endpoint, headers, http)
            async with gateway.on_loopback() as base_url:
                rolled = await environment.roll_out(task, base_url=base_url, model=endpoint.model)
        gateway.seen.require_answers(self.name, task.name)
        turns = gateway.seen.turns
        if rolled.reward is not None:
            rewards = {**rolled.rewards, REWARD: rolled.reward}
            await sandbox.write(TOLD, json.dumps(rewards).encode())
        if rolled.late:
            raise OutOfTime(f"{task.name}: the environment's own time was over")
        return HarnessRun(
            ending="done",
            session_id=headers[SESSION] if turns else None,
            inference_ids=tuple(turn.inference_id for turn in turns),
            policy_versions=tuple(turn.policy_version for turn in turns),
            prompt_tokens=rolled.prompt_tokens,
            output_tokens=rolled.output_tokens,
            critical_path_seconds=time.monotonic() - began,
        )

    async def _environment(self, name: str) -> VerifiersEnvironment:
        """Return an environment that is loaded: one whose process has ended is loaded again."""
        async with self._loading:
            loaded = self._loaded.get(name)
            if loaded is not None and loaded.has_ended:
                await loaded.close()
            if loaded is None or loaded.has_ended:
                try:
                    loaded = await VerifiersEnvironment.start(self._wanted[name], self._folder)
                except TaskError as error:  # it could be loaded when its tasks were read
                    raise InfrastructureFailure("harness", str(error)) from error
                self._loaded[name] = loaded
            return loaded
