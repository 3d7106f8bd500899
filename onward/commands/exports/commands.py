"""`onward export`. Imports what it needs when it runs, as `onward.cli` does."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from onward.commands.options import DEFAULT_DIRECTORY, Directory, From, Set, To, overrides_of, refuse_beside

if TYPE_CHECKING:
    from onward.replays.exports.choice import TurnChoice


def export(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    out: Annotated[
        Path, Parameter(help="A .parquet or .jsonl file; with --as also .csv, else also a directory, a file a kind.")
    ],
    as_: Annotated[
        str | None,
        Parameter(name="--as", help="A form to train on: turns, kto, dpo, sft or grpo; without it, events as logged."),
    ] = None,
    from_: From = None,
    to: To = None,
    namespace: Annotated[str | None, Parameter(help="Only records of this namespace.")] = None,
    workload: Annotated[str | None, Parameter(help="With --as: only turns of this workload.")] = None,
    version: Annotated[
        str | None, Parameter(help="With --as: only turns that this version said (12), or one of these (12-40).")
    ] = None,
    tag: Annotated[
        list[str] | None, Parameter(help="With --as: only turns with this tag, NAME=VALUE; of several, with all.")
    ] = None,
    outcome: Annotated[
        list[str] | None,
        Parameter(help="With --as: only turns of which this was said, NAME or NAME=VALUE; of several, all."),
    ] = None,
    least_reward: Annotated[
        float | None, Parameter(help="With --as sft: the least reward of a turn; without it, any above 0.")
    ] = None,
    format_: Annotated[
        Literal["parquet", "jsonl"] | None,
        Parameter(name="--format", help="Without --as: of the files in a directory; parquet, if not said."),
    ] = None,
    set_: Set = None,
) -> None:
    """Write what was logged to files, as events or in a form to train on, and print how much it is.

    With --as, FILE.json beside the file says where it comes from; turns that may not be learned from are left out
    and counted by reason (`--as turns` has them all, with the reason). Exit code 1 when no row was written."""
    from onward.commands.accounts.deeds import record_command
    from onward.output import show_line
    from onward.replays.exports.raw import export_events

    overrides = overrides_of(set_)
    if as_ is None:
        of_forms: dict[str, object] = {"--workload": workload, "--version": version, "--tag": tag, "--outcome": outcome}
        refuse_beside("an export without --as", of_forms | {"--least-reward": least_reward})
        record_command(directory, overrides, "read", "onward export", namespace)
        show_line(export_events(directory, out, from_, to, namespace, format_, overrides))
        return
    refuse_beside("--as", {"--format": format_})
    from onward.replays.exports.choice import choice_of
    from onward.replays.exports.offline import export_form

    choice = choice_of(from_, to, namespace, workload, version, tag or (), outcome or ())
    record_command(directory, overrides, "read", f"onward export --as {as_}", namespace)
    done = export_form(directory, out, as_, choice, overrides, least_reward)
    show_line(done.counts)
    if not done.rows:
        made = "no turns" if not done.turns else f"none of {done.turns} turns makes a row of --as {as_}"
        print(f"onward: {directory}: {made}{_chosen(choice)}; nothing was written", file=sys.stderr)
        sys.exit(1)


def _chosen(choice: "TurnChoice") -> str:
    return "".join(f" {option} {value}" for option, value in choice.told.items())
