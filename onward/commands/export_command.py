"""`onward export`: the past as files, for other tools."""

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from core.errors import ConfigError
from onward.commands.options import DEFAULT_DIRECTORY, Directory, From, Set, To, Where, overrides_of, refuse_beside

Form = Literal["events", "sft", "tokens", "kto", "pairs", "rewards"]


def export(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    out: Annotated[
        Path, Parameter(help="A .parquet or .jsonl file; of events also a directory, for one file of each kind.")
    ],
    as_: Annotated[
        Form,
        Parameter(
            name="--as",
            help="The events as they were logged, or rows to train on: good answers (sft, or as tokens), answers with "
            "a label (kto), pairs of answers (pairs), answers with rewards and credits (rewards).",
        ),
    ] = "events",
    where: Where = None,
    from_: From = None,
    to: To = None,
    namespace: Annotated[str | None, Parameter(help="Only records of this namespace.")] = None,
    format_: Annotated[Literal["parquet", "jsonl"] | None, Parameter(name="--format")] = None,
    spec: Annotated[Path | None, Parameter(help="Another reward spec than the directory's, to score by.")] = None,
    good: Annotated[float | None, Parameter(help="An answer is good whose reward is more; without it, 0.")] = None,
    margin: Annotated[
        float | None, Parameter(help="By more than this the rewards of a pair differ; without it, 0.")
    ] = None,
    set_: Set = None,
) -> None:
    """Write a past from log and archive to files, and print how much there is, and what was left out for which reason.

    `--as events` writes every record; all other forms have a row for each turn or pair that may be learned from, and a
    manifest beside the file (docs/research.md)."""
    from onward.commands.accounts.deeds import record_command

    overrides = overrides_of(set_)
    record_command(directory, overrides, "read", f"onward export --as {as_}", namespace)
    if as_ == "events":
        from onward.replays.exports.raw import export_events

        refuse_beside("--as events", {"--where": where, "--spec": spec, "--good": good, "--margin": margin})
        print(json.dumps(export_events(directory, out, from_, to, namespace, format_, overrides)))
        return
    if as_ != "pairs" and margin is not None:
        raise ConfigError("--margin: only with --as pairs")
    if as_ == "pairs" and good is not None:
        raise ConfigError("--good: not with --as pairs")
    from onward.replays.exports.samples import Wanted, export_samples

    refuse_beside(f"--as {as_}, where the name of --out says it", {"--format": format_})
    wanted = Wanted(as_, tuple(where or ()), from_, to, namespace, spec, good or 0.0, margin or 0.0)
    told = export_samples(directory, out, wanted, overrides)
    print(json.dumps({name: told[name] for name in SHOWN}, indent=2))


SHOWN = ("rows", "turns", "left_out", "missing", "suites", "rows_digest")
"""What of a manifest is printed."""
