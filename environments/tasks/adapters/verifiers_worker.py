"""The adapter's side in the interpreter of `verifiers`, which cannot share ours; it imports nothing of ours.

It speaks lines of JSON. The first that it reads names the environment, and it answers with the tasks of it. Each line
after that asks for one rollout, and is answered by `{"id", "reward", "rewards", "turns", ...}` or `{"id", "error"}`;
`{"id", "ends"}` gives one up. The environment's own harness asks the model, at the address that the line gives."""

import asyncio
import functools
import json
import os
import sys
from typing import Any


async def serve(asked: dict[str, Any], lines: asyncio.StreamReader, write: Any) -> None:
    """Load an environment, tell of its tasks, and make each rollout that is asked for, side by side."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.cli.eval import EvalConfig
    from verifiers.v1.env import RunSlot
    from verifiers.v1.utils.loaders import load_environment

    def configured(model: str, base_url: str) -> Any:
        client = {"base_url": base_url, "api_key_var": "ONWARD_API_KEY"}
        said = {"env": asked["environment"], "sampling": asked["sampling"], "push": False}
        return EvalConfig.model_validate({**said, "model": model, "client": client})

    environment = load_environment(configured("none", "http://127.0.0.1:9/v1").env)
    tasks: list[Any] = []
    for task in environment.taskset:
        if len(tasks) == asked["most_tasks"]:
            break
        tasks.append(task)
    write({"tasks": [{"name": one.data.name or one.data.id, "prompt": one.data.prompt_text} for one in tasks]})

    async def roll_out(given: dict[str, Any]) -> dict[str, Any]:
        config = configured(given["model"], given["base_url"])
        context = ModelContext(client=config.client, model=config.model, sampling=config.sampling)
        episode = await environment.run_slot(RunSlot(tasks[given["index"]]), context)
        return _told(episode)

    def answer(number: str, done: asyncio.Task[dict[str, Any]]) -> None:
        del running[number]
        if not done.cancelled():
            error = done.exception()
            write({"id": number, **({"error": f"{type(error).__name__}: {error}"} if error else done.result())})

    running: dict[str, asyncio.Task[dict[str, Any]]] = {}
    async with environment.serving():
        while line := await lines.readline():
            given = json.loads(line)
            if given.get("ends"):
                if given["id"] in running:
                    running[given["id"]].cancel()
                continue
            task = running[given["id"]] = asyncio.create_task(roll_out(given))
            task.add_done_callback(functools.partial(answer, given["id"]))
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


def _told(episode: Any) -> dict[str, Any]:
    """Return what is told of one episode: its reward is the mean of its agents'.

    Where an agent's time was over, what it did is judged all the same; where the episode's was, nothing is. Any other
    stage that took too long is an error: what it left out of the reward is no fault of the model's."""
    stages = sorted({trace.stop_condition for trace in episode.traces if trace.is_timeout})
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if failed := [stage for stage in stages if stage != "agent_timeout"]:
        return {"error": ", ".join(failed)}
    if not episode.is_timeout and (not episode.ok or not episode.traces):
        return {"error": "; ".join(str(error) for error in errors) or "the environment did not end well"}
    rewards = [float(trace.reward) for trace in episode.traces]
    named = {name: each.value for trace in episode.traces for name, each in trace.rewards.items() if each is not None}
    return {
        "reward": None if episode.is_timeout else sum(rewards) / len(rewards),
        "rewards": named,
        "turns": episode.num_turns,
        "prompt_tokens": episode.num_input_tokens,
        "output_tokens": episode.num_output_tokens,
        "late": episode.is_timeout or bool(stages),
    }


async def main() -> None:
    """Serve until the standard input is closed."""
    lines = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    out = os.fdopen(os.dup(1), "w")  # no program that an environment starts is given this descriptor
    os.dup2(2, 1)  # whatever an environment prints, or a program that it starts, is no answer
    sys.stdout = sys.stderr

    def write(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    await serve(json.loads(await lines.readline()), lines, write)


if __name__ == "__main__":
    asyncio.run(main())
