"""`onward demo`: the product in its own process tree, simulated users in another, one report."""

import json
import shutil
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.errors import ConfigError, OnwardError
from core.settings import PREFIX
from onward.commands.client import directly
from onward.directory.layout import PRETRAINED_MODEL, SHIPPED_REWARDS, Layout
from onward.replays.provenance import made_by

_SECONDS = 150.0
_SHIFT_AT_S = 100.0
_SHIFT_SECONDS = 200.0
_RATES = {"local": 20.0, "sglang": 8.0}  # sessions a second: what two cores carry besides the learner
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 90.0
_TAUGHT_S = 600.0
PRETRAINED_NAME = "smollm2"
_BRIEF_TOKENS = 512  # of context: its users ask for little, and a longer one takes memory
_MATURITY_S = 20.0  # users have spoken by then; the shipped spec waits ten minutes for them


@dataclass(frozen=True)
class Hacking:
    """A fault planted in users and their client: the simulator's options, and the reward spec that goes with them."""

    options: tuple[str, ...] = ()
    spec: str = ""


def hacking(
    exploit: str | None,
    *,
    liars: float,
    lie: Literal["invert", "style"],
    spammers: float,
    spam: Literal["random", "same"],
    users: int,
) -> Hacking:
    """Return the options of an exploit. Raises ConfigError naming the option."""
    from simulator.exploits import exploit_of
    from simulator.users.crowd import CrowdOptions

    try:
        crowd, spec = CrowdOptions(liars, lie, spammers, spam, users), exploit_of(exploit).spec()
    except ValueError as error:
        raise ConfigError(f"--{error}") from None
    options = [] if exploit is None else ["--exploit", exploit]
    if not crowd.is_honest:
        options += ["--liars", str(liars), "--lie", lie, "--spammers", str(spammers), "--spam", spam]
        options += ["--users", str(users)]
    return Hacking(tuple(options), spec)


def run_demo(
    output: Path,
    *,
    seconds: float | None,
    seed: int,
    shift: bool,
    rate: float | None,
    overrides: Mapping[str, str],
    hacking: Hacking = Hacking(),
) -> int:
    """Run the demo; return the simulator's exit code: 0 when nothing was lost and true quality rose."""
    if seconds is None:
        seconds = _SHIFT_SECONDS if shift else _SECONDS
    if rate is None:
        rate = _RATES[overrides.get("ONWARD_SERVING__ENGINE", "local")]
    service_directory = output / "service"
    shutil.rmtree(service_directory, ignore_errors=True)
    options = ["--seconds", str(seconds), "--seed", str(seed), "--rate", str(rate), "--output", str(output)]
    if shift:
        options += ["--shift-at", str(_SHIFT_AT_S)]
    options += [*hacking.options, "--command", made_by()["command"]]
    settings = {"ONWARD_LEARNER__SEED": str(seed)}
    if hacking.options:
        settings["ONWARD_MONITORS__MATURITY_S"] = str(_MATURITY_S)
    if hacking.spec:
        service_directory.mkdir(parents=True)
        Layout(service_directory).rewards.write_text(SHIPPED_REWARDS.read_text() + hacking.spec)
    with running_service(service_directory, {**settings, **overrides}) as urls:
        replicas = [argument for url in urls for argument in ("--url", url)]
        return subprocess.run([sys.executable, "-m", "simulator", *replicas, *options], check=False).returncode


def pretrained_settings(seed: int) -> dict[str, str]:
    """Return the settings that `onward init` chooses for the pretrained model on this machine's processor.

    Raises ConfigError where it is not there."""
    if not (PRETRAINED_MODEL / "config.json").exists():
        raise ConfigError(f"{PRETRAINED_MODEL} is not there: `make smollm2` makes it")
    from onward.profiles.files import as_variables
    from onward.profiles.init import profile_of

    _, _, profile = profile_of(PRETRAINED_MODEL, "cpu")
    return {
        **as_variables(profile),
        "ONWARD_LEARNER__SEED": str(seed),
        "ONWARD_SERVING__MODEL": str(PRETRAINED_MODEL),
        "ONWARD_SERVING__MODEL_NAME": PRETRAINED_NAME,
        "ONWARD_SERVING__CONTEXT_LENGTH": str(_BRIEF_TOKENS),
    }


def run_pretrained_demo(
    output: Path, *, seconds: float | None, seed: int, overrides: Mapping[str, str], unfit: Mapping[str, bool]
) -> int:
    """Let users who want small functions teach a model that somebody else trained, and return their exit code.

    It is 0 when nothing was lost and held-out functions were written better beyond chance. Raises ConfigError where the
    model is not there, or for an option of the tiny model's users (those of `unfit` that are true)."""
    if given := [name for name, is_given in unfit.items() if is_given]:
        raise ConfigError(f"{', '.join(given)}: only for the tiny model's users, not with --model {PRETRAINED_NAME}")
    settings = {**pretrained_settings(seed), **overrides}
    service_directory = output / "service"
    shutil.rmtree(service_directory, ignore_errors=True)
    options = ["--model", PRETRAINED_NAME, "--seed", str(seed), "--output", str(output)]
    options += ["--seconds", str(_TAUGHT_S if seconds is None else seconds), "--command", made_by()["command"]]
    with running_service(service_directory, settings) as urls:
        replicas = [argument for url in urls for argument in ("--url", url)]
        command = [sys.executable, "-m", "simulator.functions", *replicas, *options]
        return subprocess.run(command, check=False).returncode


def as_options(settings: Mapping[str, str]) -> list[str]:
    """Return settings, by the names of their environment variables, as `--set` takes them."""
    return [f"{name.removeprefix(PREFIX).lower().replace('__', '.')}={value}" for name, value in settings.items()]


@contextmanager
def running_service(directory: Path, overrides: Mapping[str, str]) -> Iterator[list[str]]:
    """Start a service on `directory`, yield its URLs, and stop it afterwards; its log goes to DIRECTORY.log."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "onward", "run", str(directory), "--port", "0"]
    for setting in as_options(overrides):
        command += ["--set", setting]
    with directory.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield _wait_until_ready(process, Layout(directory.resolve()), Path(log.name))
        finally:
            process.terminate()
            process.wait(_STOP_TIMEOUT_S)


def _wait_until_ready(process: "subprocess.Popen[bytes]", layout: Layout, log: Path) -> list[str]:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise OnwardError(f"the service ended with {process.returncode}, see {log}:\n{log.read_text()[-2000:]}")
        if layout.address.exists():
            urls = [str(url) for url in json.loads(layout.address.read_text())["urls"]]
            if all(map(_ready, urls)):
                return urls
        time.sleep(0.1)
    raise OnwardError(f"the service was not ready within {_START_TIMEOUT_S:.0f} s, see {log}")


def _ready(url: str) -> bool:
    try:
        with directly().open(url + "/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False
