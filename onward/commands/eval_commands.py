"""The commands `onward evals`, `onward suite` and `onward propose`: what a version must show before it serves.

Modules that a command needs are imported when it runs, as in `onward.cli`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from core.errors import ConfigError, from_extra
from onward.commands.options import DEFAULT_DIRECTORY, Directory, From, Key, Set, To, overrides_of

if TYPE_CHECKING:
    from onward.trials.attempts import Workplace

evals = App(name="evals", help="Ask versions suites of cases, and compare two versions by them.")
suites = App(name="suite", help="Make suites of what users did, and see that nothing of them was learned.")


@evals.command(name="run")
def run_evals(
    suite: Annotated[Path, Parameter(help="A directory of case files (*.toml).")],
    *,
    url: Annotated[str, Parameter(help="The URL of an OpenAI-compatible endpoint, with /v1.")],
    model: Annotated[str, Parameter(help="The model's name at the endpoint.")],
    live_url: Annotated[
        str | None, Parameter(help="The URL of the version to compare with; without it, --url.")
    ] = None,
    live_model: Annotated[str | None, Parameter(help="The model to compare with; without it, --model.")] = None,
    margin: Annotated[float, Parameter(help="The share of all cases by which it may be worse and pass.")] = 0.05,
    concurrency: Annotated[int, Parameter(help="The number of requests at a time.")] = 8,
    budget_s: Annotated[float, Parameter(help="The time for the whole suite; later cases do not run.")] = 600.0,
    allow_commands: Annotated[bool, Parameter(negative="", help="Let checkers run commands on this machine.")] = False,
    work: Annotated[
        Path | None, Parameter(help="A folder for images and sandboxes, in which agents work on the suite's tasks.")
    ] = None,
    image: Annotated[list[str] | None, Parameter(help="PATTERN=machine or PATTERN=FOLDER: stands for images.")] = None,
    key: Key = None,
    json_: Annotated[bool, Parameter(name="--json", negative="", help="All figures, as JSON.")] = False,
) -> None:
    """Ask every case once and check the answers.

    With --live-url or --live-model, ask that one, too, and say whether the first may replace it. Exit code 1 when it
    may not, or when a case could not run."""
    from onward.replays.evals import run

    live = None if live_url is None and live_model is None else (live_url or url, live_model or model)
    limits = (budget_s, concurrency, allow_commands)
    place = None if work is None else _workplace(work, image or ())
    sys.exit(0 if run(suite, (url, model), live, limits, margin, key, as_json=json_, workplace=place) else 1)


def _workplace(folder: Path, images: Sequence[str]) -> "Workplace":
    with from_extra("environments", "--work"):
        from onward.trials.attempts import Workplace

    if malformed := [each for each in images if "=" not in each]:
        raise ConfigError(f"--image {malformed[0]}: want PATTERN=machine or PATTERN=FOLDER")
    return Workplace(folder, dict(each.split("=", 1) for each in images))


@suites.command(name="mine")
def mine_suite(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    into: Annotated[Path, Parameter(help="The suite's folder; drafts of sessions that it has already stay.")],
    workload: Annotated[str | None, Parameter(help="Only sessions with turns of this workload.")] = None,
    from_: From = None,
    to: To = None,
    set_: Set = None,
) -> None:
    """Draft eval cases from sessions whose users let the service learn, and kept an answer.

    A person accepts or refuses each draft on the console of a service whose `release.evals.drafts` names the folder."""
    from onward.suites.mine import mine

    print(json.dumps(mine(directory, into, from_, to, workload, overrides_of(set_))))


@suites.command(name="checks")
def suite_checks(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    version: Annotated[str | None, Parameter(help="The version; without it, the newest.")] = None,
    set_: Set = None,
) -> None:
    """Print, as JSON, with which suites a version's turns were compared, and how many were left out."""
    from onward.suites.checks import checks_of

    found, checks = checks_of(directory, version, overrides_of(set_))
    print(json.dumps({"version": found, "suites": msgspec.to_builtins(checks)}, indent=1))


def propose(
    replay: Annotated[Path, Parameter(help="The directory that `onward replay --out` wrote.")],
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    suite: Annotated[Path | None, Parameter(help="Case files (*.toml) to ask it and the live version.")] = None,
    margin: Annotated[float, Parameter(help="The share of all cases by which it may be worse and pass.")] = 0.05,
    reward_margin: Annotated[
        float, Parameter(help="How much less reward it may earn on held-out users and pass.")
    ] = 0.05,
    concurrency: Annotated[int, Parameter(help="The number of cases at a time.")] = 8,
    budget_s: Annotated[float, Parameter(help="The time for the whole suite; later cases do not run.")] = 600.0,
    allow_commands: Annotated[bool, Parameter(negative="", help="Let checkers run commands on this machine.")] = False,
    set_: Set = None,
) -> None:
    """Judge a replay's newest version, and propose it to the service's releases.

    It is judged by cases and by the users that the replay held out; then it is released, waits for `onward promote`, or
    is refused. Where there is neither, the service's own suite (`release.evals.suite`) decides, if there is one. Exit
    code 1 when it is not to be released."""
    from onward.replays.evals import check_options
    from onward.replays.propose import propose as hand_over
    from serving.evals.gate import Bounds
    from serving.evals.run import Limits

    check_options(margin, budget_s, concurrency, reward_margin)
    limits = Limits(budget_s, concurrency, allow_commands)
    policy = hand_over(replay, directory, suite, limits, Bounds(margin=margin), reward_margin, overrides_of(set_))
    assert policy.verdict is not None
    print(f"version {policy.version}: {policy.verdict.action}: {policy.verdict.why}")
    if policy.verdict.action == "hold":
        print(f"it waits: `onward promote {policy.version}` releases it")
    sys.exit(0 if policy.verdict.action in ("pass", "ask") else 1)
