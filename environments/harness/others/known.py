"""Harnesses of others that are known here, as their registries have them: mini-swe-agent (PyPI), opencode (npm).

Each is installed into a folder of its own on this machine, which sandboxes see read-only at the same place."""

import json
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from environments.errors import InfrastructureFailure
from environments.harness.others.guest import Program
from environments.tasks.task import Task

HOME = "/tmp/guest"


def mini_swe_agent(environment: Path) -> Program:
    """Return mini-swe-agent, installed into a virtual environment. Raises InfrastructureFailure where it is not."""
    packages = [str(path) for path in environment.glob("lib/python*/site-packages")]
    found = next(iter(distributions(name="mini-swe-agent", path=packages)), None)
    if found is None:
        raise InfrastructureFailure("harness", f"mini-swe-agent is not installed in {environment}")
    python = (environment / "bin" / "python").resolve()

    def command(url: str, model: str, task: Task) -> list[str]:
        options = ["-y", "--exit-immediately", "-o", f"{HOME}/trajectory.json"]
        return [str(environment / "bin" / "mini"), "-m", f"openai/{model}", "-t", task.instruction, *options]

    def surroundings(url: str) -> Mapping[str, str]:
        return {
            "HOME": HOME,
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": "unused",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    folders = {str(folder): folder for folder in (environment, python.parents[1])}
    return Program(
        "mini-swe-agent", found.version, command, folders, environment=surroundings, files=_home, python=str(python)
    )


def opencode(modules: Path) -> Program:
    """Return opencode, installed into a `node_modules`. Raises InfrastructureFailure where it is not.

    Its program is the platform's own and needs no node."""
    about, programs = modules / "opencode-ai" / "package.json", sorted(modules.glob("opencode-linux-*/bin/opencode"))
    if not about.exists() or not programs:
        raise InfrastructureFailure("harness", f"opencode is not installed in {modules}")
    version = json.loads(about.read_text())["version"]

    def command(url: str, model: str, task: Task) -> list[str]:
        return [str(programs[0]), "run", task.instruction]

    def surroundings(url: str) -> Mapping[str, str]:
        places = {f"XDG_{name}_HOME": f"{HOME}/{name.lower()}" for name in ("CONFIG", "DATA", "CACHE", "STATE")}
        return {"HOME": HOME, "OPENCODE_CONFIG": f"{HOME}/opencode.json", **places}

    def files(url: str, model: str) -> Mapping[str, str]:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "unused"},
            "models": {model: {"name": model, "limit": {"context": 60_000, "output": 512}}},
        }
        settings = {
            "model": f"onward/{model}",
            "small_model": f"onward/{model}",
            "autoupdate": False,
            "share": "disabled",
            "provider": {"onward": provider},
        }
        return {f"{HOME}/opencode.json": json.dumps(settings)}

    return Program("opencode", version, command, {str(modules): modules}, files=files, environment=surroundings)


def _home(url: str, model: str) -> Mapping[str, str]:
    return {f"{HOME}/.keep": ""}
