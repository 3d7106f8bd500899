"""The commands `onward evals`, `suite`, `ope` and `propose`: what a version must show before it serves, by which cases.

Modules that a command needs are imported when it runs, as in `onward.cli`."""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from core.errors import ConfigError
from onward.commands.options import (
    DEFAULT_DIRECTORY,
    Directory,
    From,
    Key,
    Set,
    To,
    images_of,
    overrides_of,
    refuse_beside,
)

if TYPE_CHECKING:
    from serving.evals.cases import Review

ALLOW = "Let checkers run commands on this machine, and versions work on tasks in sandboxes."
IMAGES = Path("build/environments")
"""As `python -m environments.tasks check` has it."""
Base = Annotated[
    list[str] | None,
    Parameter(
        negative="",
        help="IMAGE=machine or IMAGE=FOLDER: what stands for a task's image that no engine can pull; may be repeated.",
    ),
]
Images = Annotated[Path, Parameter(help="The folder that keeps tasks' prepared images, and interpreters of verifiers.")]

evals = App(name="evals", help="Ask versions suites of cases, and compare two versions by them.")


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
    allow_commands: Annotated[bool, Parameter(negative="", help=ALLOW)] = False,
    base: Base = None,
    images: Images = IMAGES,
    key: Key = None,
    json_: Annotated[bool, Parameter(name="--json", negative="", help="All figures, as JSON.")] = False,
) -> None:
    """Ask every case once and check the answers.

    With --live-url or --live-model, ask that one, too, and say whether the first may replace it. Exit code 1 when it
    may not, or when a case could not run."""
    from onward.replays.evals import run

    live = None if live_url is None and live_model is None else (live_url or url, live_model or model)
    limits = (budget_s, concurrency, allow_commands)
    stands_for = images_of(base)
    is_well = run(suite, (url, model), live, limits, margin, key, as_json=json_, images=stands_for, kept=images)
    sys.exit(0 if is_well else 1)


@evals.command(name="check")
def check_evals(
    *suites: Annotated[Path, Parameter(help="A directory of case files (*.toml).")],
    sessions: Annotated[Path | None, Parameter(help="The service's directory whose logged turns are compared.")] = None,
    corpus: Annotated[
        list[Path] | None, Parameter(negative="", help="Documents of `onward midtrain`; may be repeated.")
    ] = None,
    tasks: Annotated[
        list[Path] | None, Parameter(negative="", help="A folder of tasks for rollouts; may be repeated.")
    ] = None,
    images: Images = IMAGES,
    from_: From = None,
    to: To = None,
    json_: Annotated[bool, Parameter(name="--json", negative="", help="All that was found, as JSON.")] = False,
    set_: Set = None,
) -> None:
    """Find the turns, documents and tasks that resemble a case's solution, or ask the same as a case.

    Of a turn it says which version trained on it first. With --sessions the tasks of that service's own rollouts are
    looked at, too. Tasks of reasoning-gym are made by the library; environments of verifiers are loaded in an
    interpreter of their own, kept below --images. Exit code 1 when anything was found."""
    from onward.output import console, show_json
    from onward.replays.provenance import made_by
    from onward.replays.suites.contamination import Sources, check_suites, show

    if not suites:
        raise ConfigError("onward evals check SUITE: name one or more")
    found = check_suites(suites, Sources(sessions, corpus or (), tasks or (), images, from_, to, overrides_of(set_)))
    show_json(found.report() | {"provenance": found.origin or made_by()}) if json_ else show(found, console())
    sys.exit(1 if found.places else 0)


def ope(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    policy: Annotated[
        list[Path] | None,
        Parameter(negative="", help="A checkpoint's directory, in Hugging Face's format; may be repeated."),
    ] = None,
    version: Annotated[
        list[int] | None, Parameter(negative="", help="A version of the service beside it; without any, the live one.")
    ] = None,
    holdout: Annotated[
        float | None, Parameter(help="Only users whom `onward replay --holdout` of this share held out.")
    ] = None,
    from_: From = None,
    to: To = None,
    namespace: Annotated[str | None, Parameter(help="Only turns of this namespace.")] = None,
    workload: Annotated[str | None, Parameter(help="Only turns of this workload.")] = None,
    out: Annotated[Path | None, Parameter(help="A file for the report: JSON, or a table if it ends in .csv.")] = None,
    json_: Annotated[bool, Parameter(name="--json", negative="", help="The report, as JSON.")] = False,
    set_: Set = None,
) -> None:
    """Estimate what checkpoints and versions would have earned on the logged turns, and compare them in pairs.

    Each estimate has a 95 % interval, or says why there is none. Exit code 1 when none of them can be told."""
    from onward.output import console, show_json
    from onward.replays.estimates.ope import evaluate, show
    from onward.replays.exports.choice import choice_of

    choice = choice_of(from_, to, namespace, workload)
    report = evaluate(directory, policy or (), version or (), choice, holdout, out, overrides_of(set_))
    show_json(report) if json_ else show(report, console())
    sys.exit(0 if any(candidate["gains"] for candidate in report["candidates"]) else 1)


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
    allow_commands: Annotated[bool, Parameter(negative="", help=ALLOW)] = False,
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="The verdict with all figures, as JSON.")
    ] = False,
    set_: Set = None,
) -> None:
    """Judge a replay's newest version, and propose it to the service's releases.

    It is judged by cases and by the users that the replay held out; then it is released, waits for `onward promote`, or
    is refused. Where there is neither, the service's own suite (`release.evals.suite`) decides, if there is one. Exit
    code 1 when it is not to be released."""
    from onward.output import show_json, visible
    from onward.replays.evals import check_options
    from onward.replays.propose import propose as hand_over
    from onward.replays.propose import report_of
    from serving.evals.gate import GateBounds
    from serving.evals.run import SuiteLimits

    check_options(margin, budget_s, concurrency, reward_margin)
    limits = SuiteLimits(budget_s, concurrency, allow_commands)
    policy = hand_over(replay, directory, suite, limits, GateBounds(margin=margin), reward_margin, overrides_of(set_))
    assert policy.verdict is not None
    if json_:
        show_json(report_of(policy, replay))
    else:
        print(visible(f"version {policy.version}: {policy.verdict.action}: {policy.verdict.why}"))
    if policy.verdict.action == "hold" and not json_:
        print(f"it waits: `onward promote {policy.version}` releases it")
    sys.exit(0 if policy.verdict.action in ("pass", "ask") else 1)


suite = App(name="suite", help="Draft eval cases out of one's own sessions, and accept or reject the drafts.")
Suite = Annotated[Path, Parameter(help="The suite's directory; drafts are in its folder `drafts`.")]


@suite.command(name="mine")
def mine_suite(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    out: Annotated[Path, Parameter(help="The suite that gets the drafts; it may be new.")],
    least_reward: Annotated[float, Parameter(help="The least reward of a session's last answer.")] = 0.5,
    most: Annotated[int, Parameter(help="The most drafts to make.")] = 100,
    namespace: Annotated[str | None, Parameter(help="Only sessions of this namespace.")] = None,
    purpose: Annotated[
        list[str] | None,
        Parameter(negative="", help="Also take turns that were processed for this purpose; may be repeated."),
    ] = None,
    tasks: Annotated[
        list[Path] | None,
        Parameter(negative="", help="A folder of tasks in which agents may have worked; may be repeated."),
    ] = None,
    base: Base = None,
    images: Images = IMAGES,
    set_: Set = None,
) -> None:
    """Draft a case of each session whose last answer was good: its request, and what the user kept as the solution.

    A session of an agent with tools becomes the draft of a task: what the agent changed is the solution, and the
    commands that it ran are the tests. A session is skipped if any of its turns may not be learned from or stored. No
    run asks a draft, but if the service keeps the suite out of training, nothing that resembles its solution is trained
    on from now on. Prints the files, and why there is no draft of the other sessions."""
    from onward.output import show_json
    from onward.replays.suites.mining import DraftFilter, mine

    wanted = DraftFilter(
        least_reward, most, namespace, tuple(purpose or ()), tuple(tasks or ()), images, images_of(base)
    )
    found = mine(directory, out, wanted, overrides_of(set_))
    show_json(found.report() | {"provenance": found.origin})
    if not found.is_kept_out:
        print(f"{directory} may still train on these: name {out} in learner.admission.keep_out", file=sys.stderr)


@suite.command(name="review")
def review_suite(
    directory: Suite,
    *,
    json_: Annotated[bool, Parameter(name="--json", negative="", help="The drafts, whole.")] = False,
) -> None:
    """List the drafts of a suite that wait for a person."""
    from rich.table import Table
    from rich.text import Text

    from onward.output import show_list
    from serving.evals.cases import read_suite

    drafts = read_suite(directory).drafts
    table = Table("draft", "asks", "reward", "what was said", "file")
    for path, draft in drafts.items():
        source = draft.source
        first = next(iter(draft.asked.strip().splitlines()), "")[:60]
        said = ", ".join(source.outcomes) + (", the solution is one user's edit" if source.edited else "")
        table.add_row(*map(Text, (draft.name, first, f"{source.reward:+.2f}", said, str(path))))
    shown = [{"file": str(path)} | draft.model_dump(mode="json") for path, draft in drafts.items()]
    show_list(shown if json_ else drafts, table, as_json=json_)


@suite.command(name="accept")
def accept_draft(
    directory: Suite,
    name: Annotated[str, Parameter(help="The draft's name.")],
    *,
    checker: Annotated[
        str | None, Parameter(help='What tells a right answer: { kind = "contains", all = ["sum("] }')
    ] = None,
    group: Annotated[str | None, Parameter(help="The case's group.")] = None,
    sessions: Annotated[
        Path | None, Parameter(help="The service's directory, to check that the session may still be used.")
    ] = None,
    test: Annotated[
        list[int] | None,
        Parameter(negative="", help="For an agent's work: the number of a command that is a test; may be repeated."),
    ] = None,
    state: Annotated[
        Path | None, Parameter(help="For an agent's work: the folder of the task in whose environment it began.")
    ] = None,
    workdir: Annotated[str, Parameter(help="With --state: the folder of the work in that environment.")] = "/app",
    set_: Set = None,
) -> None:
    """Make a draft a case of the suite.

    A checker that finds the draft's own solution wrong is refused. An agent's work takes no checker: it becomes a task,
    and the commands that the agent ran are its tests."""
    from onward.wiring.foundation import open_foundation
    from onward.wiring.suites.usable import unusable_in
    from serving.evals.drafts.deciding import TaskEdit, accept, accept_task
    from serving.evals.drafts.tasks import state_of

    if checker is not None:
        refuse_beside("--checker", {"--test": test, "--state": state})
    if sessions is None:
        if checker is None:
            raise ConfigError("give --checker, or for an agent's work --sessions DIR")
        print(accept(directory, name, checker, _review(), group))
        return
    began = None if state is None else state_of(state, workdir)
    if state is not None and began is None:
        raise ConfigError(f"--workdir: {workdir}: name the folder below / in which the work lies")
    edit = TaskEdit(None, None if test is None else tuple(test), group, began)
    with closing(open_foundation(sessions, overrides_of(set_))) as source:
        unusable = unusable_in(source)
        if checker is None:
            print(accept_task(directory, name, edit, _review(), unusable))
        else:
            print(accept(directory, name, checker, _review(), group, unusable=unusable))


@suite.command(name="reject")
def reject_draft(
    directory: Suite,
    name: Annotated[str, Parameter(help="The draft's name.")],
    *,
    why: Annotated[str, Parameter(help="Why it is no case.")],
) -> None:
    """Put a draft aside for good: it is not drafted again, and its session may be learned from."""
    from serving.evals.drafts.deciding import reject

    print(reject(directory, name, why, _review()))


def _review() -> "Review":
    from core.clock import SystemClock
    from onward.commands.accounts.deeds import by_shell
    from serving.evals.cases import Review

    return Review(by=by_shell(), at=SystemClock().now())
