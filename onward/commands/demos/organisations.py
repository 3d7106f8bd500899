"""`onward demo --tenants N`: organisations with opposite tastes on one engine, each with a policy of its own."""

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from core.errors import ConfigError
from onward.commands.client import call
from onward.commands.demo import running_service
from onward.directory.layout import Layout

_SECONDS = 240.0
_RATES = {"local": 20.0, "sglang": 4.0}  # sessions a second: what two cores carry besides the learner
_RANK = 8
_LEARNING_RATE = 2e-3  # of adapters of the shipped model
_USER = "everybody"  # for whom each organisation's key speaks: one order erases all that they said
_ERASED_WITHIN_S = 240.0


def run_organisations_demo(
    output: Path, count: int, *, seconds: float | None, seed: int, rate: float | None, overrides: Mapping[str, str]
) -> int:
    """Run it; return 0 when each organisation got more of what it likes, and more than of what any other likes.

    Raises ConfigError for a number of organisations that there are no tastes for."""
    from simulator.organisations.tastes import organisations

    try:
        names = list(organisations(count))
    except ValueError as error:
        raise ConfigError(f"--tenants: {error}") from None
    service_directory = output / "service"
    shutil.rmtree(service_directory, ignore_errors=True)
    service_directory.mkdir(parents=True)
    keys = {name: secrets.token_hex(16) for name in names}
    Layout(service_directory).settings.write_text(settings_of(keys))
    settings = {
        "ONWARD_LEARNER__SEED": str(seed),
        "ONWARD_LEARNER__LORA__RANK": str(_RANK),
        "ONWARD_LEARNER__OPTIMIZER__LEARNING_RATE": str(_LEARNING_RATE),
    }
    with running_service(service_directory, {**settings, **overrides}) as urls:
        replicas = [argument for url in urls for argument in ("--url", url)]
        options = ["--count", str(count), "--seed", str(seed), "--output", str(output)]
        rate = rate or _RATES[overrides.get("ONWARD_SERVING__ENGINE", "local")]
        options += ["--seconds", str(seconds or _SECONDS), "--rate", str(rate)]
        environment = {**os.environ, "SIMULATOR_KEYS": ",".join(f"{name}={key}" for name, key in keys.items())}
        command = [sys.executable, "-m", "simulator.organisations", *replicas, *options]
        code = subprocess.run(command, check=False, env=environment).returncode
        is_gone = delete(service_directory, names[-1], keys)
        return code or int(not is_gone)


def settings_of(keys: Mapping[str, str]) -> str:
    """Return the settings of a service for these organisations, whose policies share nothing with the base policy."""
    sections = ['[sharing]\nbase_learns_from = "none"\n']
    for name, key in keys.items():
        sections.append(f'[policies.{name}]\nnamespaces = ["{name}"]\n')
        scopes = '["chat", "feedback", "read", "operate"]'
        whose = f'key = "{key}"\nnamespace = "{name}"\nuser = "{_USER}"\nscopes = {scopes}\n'
        sections.append(f"[[api.keys]]\n{whose}")
    return "\n".join(sections)


def delete(directory: Path, name: str, keys: Mapping[str, str]) -> bool:
    """Roll an organisation's policy back to the given model, erase all that its users said, and print what was done.

    Return whether it was done in time, and the versions of the others are what they were, to the bit."""
    console, why = Console(markup=False), {"why": "the organisation leaves"}
    others = {other: _digests(directory, key) for other, key in keys.items() if other != name}
    call(directory, "POST", f"/v1/policies/{name}@1/rollback", keys[name], why)
    given = call(directory, "DELETE", f"/v1/users/{_USER}", keys[name])
    order = _awaited(directory, given["erasure_id"], keys[name])
    for place, step in order["steps"].items():
        removed = ", ".join(f"{count} {what}" for what, count in step.get("removed", {}).items()) or "nothing"
        console.print(f"{place}: removed {removed}{'; ' if step.get('note') else ''}{step.get('note', '')}")
    is_done = order["state"] == "done"
    console.print(f"{name} is deleted, and the statement signed" if is_done else f"{name}: waits: {order['waits_for']}")
    changed = [
        other for other, before in others.items() if not before.items() <= _digests(directory, keys[other]).items()
    ]
    console.print(f"versions of the others that changed: {', '.join(changed) or 'none'}, by their digests")
    return is_done and not changed


def _awaited(directory: Path, number: int, key: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + _ERASED_WITHIN_S
    while True:
        found: dict[str, Any] = call(directory, "GET", f"/v1/erasures/{number}", key)
        if found["state"] == "done" or time.monotonic() > deadline_s:
            return found
        time.sleep(1.0)


def _digests(directory: Path, key: str) -> dict[str, str]:
    """Return the digests of an organisation's versions, which its key sees."""
    return {str(each["version"]): each["digest"] for each in call(directory, "GET", "/v1/policies", key)["data"]}
