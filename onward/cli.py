"""The command line. Imports what a command needs when it runs, so that `--help` is instant."""

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import App, Group, Parameter

from core.errors import ConfigError, OnwardError
from core.network.addresses import reach_loopback_directly
from core.secrets import redacted
from core.stages.start_steps import clear_line, show_every_step
from onward.backups.commands import backup, restore
from onward.commands.accounts.audit_commands import audit
from onward.commands.accounts.key_commands import keys
from onward.commands.dead_letter_commands import dead_letters
from onward.commands.eval_commands import evals, ope, propose, suite
from onward.commands.exports.commands import export
from onward.commands.midtrain_command import midtrain
from onward.commands.operators.commands import ORDERS, alarms, alerts, exclude, order
from onward.commands.options import (
    DEFAULT_DIRECTORY,
    AsJson,
    AsLived,
    ChildName,
    DemoOutput,
    DemoRate,
    DemoSeconds,
    DemoSeed,
    DemoShift,
    Directory,
    FiguresAsJson,
    FirstReplay,
    From,
    Host,
    Key,
    Port,
    ReplayOut,
    ReplaySeed,
    ReplaySpec,
    SecondReplay,
    Set,
    To,
    Turn,
    Verbose,
    Where,
    WorkKind,
    overrides_of,
    overrides_of_learner,
    refuse_beside,
)
from onward.commands.stage_commands import COMMANDS_OF_THEIR_OWN, stage_command
from onward.directory.private import keep_private
from onward.wiring.stages import STAGES

# What a directory or file of the user's can be: then its name and the system's words say all, and a traceback nothing.
_OF_FILES = {
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ELOOP),
}

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Begin": ("demo", "init", "doctor", "run"),
    "Operate a running service": (
        *("policies", "rollback", "promote", "hold", "unhold", "pin", "unpin", "fleet", "exclude", "alarms", "alerts"),
        *("rewards", "dead-letters", "keys", "audit", "backup", "restore"),
    ),
    "Study what was logged": (
        *("export", "replay", "compare", "rescore", "evals", "suite", "ope", "judge", "midtrain", "propose"),
        "rollouts",
    ),
    "Stages, as processes of their own": (
        *("api", "ingest", "score", "watch", "learn", "release", "serve", "engine-arguments", "archive", "notify"),
        "migrate",
    ),
}
"""The groups in which `--help` lists commands, by who would look for them."""

app = App(
    name="onward",
    help="Serve an open-weight model to a product and keep it learning from what users do.",
    help_format="plaintext",  # a parser of Markdown takes longer to import than all of this
)


def main() -> None:
    keep_private()
    reach_loopback_directly(os.environ)
    os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of libraries, between the lines that say how far a start is
    try:
        app(sys.argv[1:])
        sys.stdout.flush()
    except OnwardError as error:
        from onward.output import visible

        clear_line()
        print(visible(redacted(f"onward: {error}")), file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except BrokenPipeError:  # who reads has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
        sys.exit(1)
    except OSError as error:
        place = error.filename or _places_given()  # a write that fails does not say of what
        if error.errno not in _OF_FILES or not place:
            raise
        print(redacted(f"onward: {place}: {error.strerror}"), file=sys.stderr)
        sys.exit(1)


def _places_given() -> str:
    """Return the directories and files that the command works with, in the order of its parameters."""
    _, bound, _ = app.parse_args(sys.argv[1:])
    bound.apply_defaults()
    return " or ".join(str(value) for value in bound.arguments.values() if isinstance(value, Path))


@app.command
def run(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    host: Host = None,
    port: Port = None,
    verbose: Verbose = False,
    set_: Set = None,
) -> None:
    """Serve, log, score and learn in one process tree, until stopped; continues where it was.

    In mode `distributed` every stage is a process of its own, as many as `[processes]` says, on existing Kafka,
    Postgres and Redis."""
    from onward.processes.runtime import run_service

    if verbose:
        show_every_step()
    run_service(directory, overrides_of(set_) | _listen(host, port))


@app.command
def api(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    host: Host = None,
    port: Port = None,
    beside: Annotated[
        bool,
        Parameter(
            negative="",
            help="Answer with the engine of the `onward run` of this directory, which starts such processes itself.",
        ),
    ] = False,
    child: ChildName = None,
    set_: Set = None,
) -> None:
    """Run one replica of the API, which answers requests and logs them, until stopped."""
    from onward.processes.runtime import run_api

    run_api(directory, overrides_of(set_) | _listen(host, port), child, is_beside=beside)


for _row in STAGES:
    app.command(COMMANDS_OF_THEIR_OWN.get(_row.command) or stage_command(_row), name=_row.command)
app.command(evals)
app.command(ope)
app.command(propose)
app.command(suite)
app.command(alarms)
app.command(alerts)
app.command(exclude)
app.command(audit)
app.command(keys)
app.command(dead_letters)
app.command(backup)
app.command(restore)
app.command(midtrain)
app.command(export)


@app.command
def serve(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    name: Annotated[str, Parameter(help="The engine's name in the fleet.")] = "engine-1",
    url: Annotated[
        str | None, Parameter(help="The URL of an SGLang server that runs already; without it one is started.")
    ] = None,
    child: ChildName = None,
    set_: Set = None,
) -> None:
    """Host one SGLang server and keep it at the released version, until stopped. `run` starts them as set."""
    from onward.processes.stages import run_host

    run_host(directory, name, url, overrides_of(set_), child)


@app.command
def engine_arguments(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    file: Annotated[Path | None, Parameter(help="A file for them, as a shell reads them, written anew.")] = None,
    set_: Set = None,
) -> None:
    """Print the arguments with which an SGLang server that you start yourself serves as the settings say."""
    from onward.commands.engine_arguments import tell

    tell(directory, overrides_of(set_), file)


@app.command
def migrate(directory: Directory = DEFAULT_DIRECTORY, *, set_: Set = None) -> None:
    """Create the topics and tables of mode `distributed`, or upgrade them to this build; safe to repeat."""
    from onward.wiring.foundation import read_directory
    from onward.wiring.migrate import migrate

    migrate(read_directory(directory, overrides_of(set_))[1])


@app.command
def init(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    model: Annotated[Path, Parameter(help="The model's directory, in Hugging Face's format.")],
    device: Annotated[
        Literal["cpu", "cuda"] | None, Parameter(help="What computes; without it, GPUs where there are some.")
    ] = None,
    memory_gb: Annotated[
        float | None, Parameter(help="Memory that may be used, in all or of each GPU, if not what is there.")
    ] = None,
    cards: Annotated[int | None, Parameter(help="GPUs that may be used, if not all that are there.")] = None,
    for_: WorkKind = "chat",
) -> None:
    """Write settings that fit a model and this machine, and print why and what they cost. Overwrites nothing."""
    from onward.profiles.init import init

    init(directory, model, device, memory_gb, cards, for_)


@app.command
def doctor(directory: Directory = DEFAULT_DIRECTORY, *, for_: WorkKind = "chat", set_: Set = None) -> None:
    """Check settings, files and every service they name, and say what to do; exit code 1 when something is wrong."""
    from onward.commands.doctor import examine

    sys.exit(examine(directory, overrides_of(set_), for_))


@app.command
def fleet(directory: Directory = DEFAULT_DIRECTORY, *, key: Key = None, json_: AsJson = False) -> None:
    """List the engines of the running service: state, lane, version, what they hold and what they refused."""
    from onward.commands.client import show_fleet

    show_fleet(directory, key, as_json=json_)


@app.command(show=False)
def anchor(directory: Directory, *, set_: Set = None) -> None:
    """Publish the given model as the first version; `run` and `learn` do it."""
    from onward.processes.stages import run_anchor

    run_anchor(directory, overrides_of(set_))


@app.command
def policies(directory: Directory = DEFAULT_DIRECTORY, *, key: Key = None, json_: AsJson = False) -> None:
    """List the versions of the running service: state, parent, turns learned from."""
    from onward.commands.client import show_policies

    show_policies(directory, key, as_json=json_)


for _kind, _meaning in ORDERS.items():
    app.command(order(_kind, _meaning), name=_kind)


rewards = App(name="rewards", help="Show the rewards of turns.")
app.command(rewards)


@rewards.command(name="tail")
def tail_rewards(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    workload: Annotated[str | None, Parameter(help="Only rewards of this workload.")] = None,
    after: Annotated[int | None, Parameter(help="Begin after this sequence; without it, now.")] = None,
    count: Annotated[int | None, Parameter(help="Stop after this many rewards.")] = None,
    key: Key = None,
    json_: Annotated[bool, Parameter(name="--json", negative="", help="Each reward whole, as JSON in a line.")] = False,
) -> None:
    """Show rewards of the running service as they come, until stopped."""
    from onward.commands.rewards import tail

    tail(directory, key, workload, after, count, as_json=json_)


@rewards.command(name="explain")
def explain_reward(inference_id: Turn, directory: Directory = DEFAULT_DIRECTORY, *, key: Key = None) -> None:
    """Show the story of one turn: which outcomes were reported, when, by whom, and what they were worth."""
    from onward.commands.rewards import explain

    explain(directory, inference_id, key)


@app.command
def replay(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    out: ReplayOut = None,
    as_lived: AsLived = False,
    version: Annotated[
        int | None, Parameter(help="With --as-lived: the last version; without it, the live one.")
    ] = None,
    spec: ReplaySpec = None,
    learner: Annotated[Path | None, Parameter(help="A TOML file with another [learner] section.")] = None,
    seed: ReplaySeed = None,
    from_: From = None,
    to: To = None,
    where: Where = None,
    holdout: Annotated[float, Parameter(help="Share of users held out to judge the candidate by.")] = 0.0,
    set_: Set = None,
) -> None:
    """Score and train again from a directory's log and archive, from the anchor, into OUT.

    OUT gets a candidate, report.json and report.png of what was learned; the digests are printed. `--learner FILE`
    tries another learner, and `--set learner.advantage.baseline=ema` overrides it. `--as-lived` instead repeats,
    from their manifests, the updates that made the version that serves, and prints for each version whether its digest
    is the live one; it exits with 1 when one is not."""
    overrides = overrides_of_learner(learner) | overrides_of(set_)
    if as_lived:
        from onward.replays.as_lived import prove

        others = {"--out": out, "--spec": spec, "--seed": seed, "--from": from_, "--to": to, "--learner": learner}
        refuse_beside("--as-lived", others | {"--where": where, "--holdout": holdout or None})
        sys.exit(0 if prove(directory, version, overrides) else 1)
    if out is None or version is not None:
        raise ConfigError("--version: only with --as-lived" if out else "--out: name a directory for the candidate")
    from onward.output import show_json
    from onward.replays.replay import replay_log

    show_json(replay_log(directory, out, spec, seed, from_, to, overrides, holdout, where or ()))


@app.command
def compare(
    first: FirstReplay,
    second: SecondReplay,
    *,
    json_: FiguresAsJson = False,
) -> None:
    """Compare two replays: how their settings differ, and their results."""
    from onward.replays.compare import compare_replays

    compare_replays(first, second, as_json=json_)


@app.command
def rescore(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    spec: Annotated[Path, Parameter(help="The reward spec to try.")],
    from_: From = None,
    to: To = None,
    out: Annotated[Path | None, Parameter(help="A file for the figures: JSON, or a table if it ends in .csv.")] = None,
) -> None:
    """Score a directory's past under another spec and under its own, and show what would change. Changes nothing."""
    from onward.replays.rescore import compare_specs

    compare_specs(directory, spec, from_, to, out)


@app.command
def demo(
    output: DemoOutput = Path("demo"),
    *,
    seconds: DemoSeconds = None,
    seed: DemoSeed = 0,
    shift: DemoShift = False,
    engine: Annotated[Literal["local", "sglang"], Parameter(help="The engine that generates.")] = "local",
    rate: DemoRate = None,
    exploit: Annotated[str | None, Parameter(help="A flaw of client and reward spec to try: docs/exploits.md.")] = None,
    liars: Annotated[float, Parameter(help="Share of users who lie together.")] = 0.0,
    lie: Annotated[
        Literal["invert", "style"], Parameter(help="They report the opposite, or that a wrong style is good.")
    ] = "invert",
    spammers: Annotated[float, Parameter(help="Share of users who report very much.")] = 0.0,
    spam: Annotated[Literal["random", "same"], Parameter(help="They report at random, or always the same.")] = "random",
    users: Annotated[int, Parameter(help="The number of users, if not all are honest.")] = 100,
    model: Annotated[
        Literal["tiny", "smollm2"], Parameter(help="The shipped model, or a pretrained one that `make smollm2` makes.")
    ] = "tiny",
    set_: Set = None,
) -> None:
    """Start the product, let simulated IDE users work with it, and show whether it became better."""
    from onward.commands.demo import hacking, run_demo, run_pretrained_demo

    overrides = {"ONWARD_SERVING__ENGINE": engine, **overrides_of(set_)}
    if model != "tiny":
        unfit = {"--shift": shift, "--rate": rate is not None, "--exploit": exploit is not None}
        unfit |= {"--liars": bool(liars), "--spammers": bool(spammers)}
        sys.exit(run_pretrained_demo(output, seconds=seconds, seed=seed, overrides=overrides, unfit=unfit))
    crowd = hacking(exploit, liars=liars, lie=lie, spammers=spammers, spam=spam, users=users)
    run = run_demo(output, seconds=seconds, seed=seed, shift=shift, rate=rate, overrides=overrides, hacking=crowd)
    sys.exit(run)


def _listen(host: str | None, port: int | None) -> dict[str, str]:
    given = {"ONWARD_API__HOST": host, "ONWARD_API__PORT": None if port is None else str(port)}
    return {name: value for name, value in given.items() if value is not None}


for _place, (_title, _names) in enumerate(GROUPS.items()):
    _group = Group(_title, sort_key=_place)
    for _name in _names:
        app[_name].group = _group
