"""`onward export --as …`: what a past taught, as rows for TRL, verl and tools like them.

The past is scored again by the directory's own spec, as a replay does, so that every turn has the last reward that its
outcomes give it."""

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress

from core.clock import ManualClock
from core.errors import ConfigError
from core.events import Topic
from core.ids import Namespace
from core.ports import Store
from core.reward_spec import RewardSpec, load_reward_spec
from core.store import open_sqlite
from learner.sequences.kept_out import KeptOut
from onward.replays.exports.admission import Admission
from onward.replays.exports.columns import COLUMNS, Row
from onward.replays.exports.files import RowFile
from onward.replays.exports.pairs import Pair, Requests, pair_row
from onward.replays.exports.rows import ROWS, LeftOut, Maker
from onward.replays.history import exclusions_of, open_history, period, put_told, require_directory, span, watched
from onward.replays.scratch import scratch
from onward.replays.selection.known import KnownTurn, all_known, these_known
from onward.replays.selection.language import parse
from onward.wiring.foundation import open_foundation
from onward.wiring.learner import suites_kept_out
from scoring.rescore import rescore
from serving.rendering import load_renderer

_PART = 200  # pairs whose turns are read at once


@dataclass(frozen=True)
class Wanted:
    """What is exported: the options of the command."""

    form: str
    where: tuple[str, ...] = ()
    begin: str | None = None
    end: str | None = None
    namespace: str | None = None
    spec: Path | None = None
    good: float = 0.0
    margin: float = 0.0


def export_samples(directory: Path, out: Path, wanted: Wanted, overrides: Mapping[str, str]) -> dict[str, Any]:
    """Write rows to `out`, and its manifest beside it; return the manifest.

    Raises ConfigError naming the option at fault, or when no turn is left."""
    require_directory(directory, overrides)
    _check(out, wanted)
    selection, times = parse(wanted.where), period(wanted.begin, wanted.end)
    namespace = None if wanted.namespace is None else Namespace(wanted.namespace)
    spec = None if wanted.spec is None else load_reward_spec(wanted.spec)
    with (
        closing(open_foundation(directory, overrides)) as source,
        scratch(out.with_name(f"{out.name}.scored.partial"), f"--out {out}") as place,
        closing(open_sqlite(place / "store.db")) as store,
        Progress(console=Console(stderr=True)) as progress,
    ):
        history = open_history(source, Topic.TURNS, *times, namespace)
        first, last = span(watched(history, progress, "look"), directory)
        records = put_told(watched(history, progress, "score"), store)
        deque(rescore(records, spec or source.spec, store, ManualClock(first), until=last), maxlen=0)
        kept_out = KeptOut(suites_kept_out(source.settings.learner))
        maker = Maker(load_renderer(source.model), kept_out, wanted.good)
        admission = Admission(selection, exclusions_of(source.store), kept_out, maker.renderer.tokenizer_digest)
        with RowFile(out, wanted.form) as file:
            for number, row in enumerate(_rows(store, admission, maker, wanted, progress)):
                file.write(_numbered(row, number))
            if not file.rows:
                raise ConfigError(f"{directory}: no turn to export: {_counts(admission)}")
            with source.store.work() as work:  # before it is there: an erasure names the files that a session is in
                work.exports.put(str(out.resolve()), wanted.form, admission.sessions, source.clock.now())
            return file.finish(_told(wanted, spec or source.spec, admission, maker, history.missing))


def _check(out: Path, wanted: Wanted) -> None:
    if out.suffix not in (".parquet", ".jsonl"):
        raise ConfigError(f"--out {out}: with --as {wanted.form} want a name that ends in .parquet or .jsonl")
    if out.exists():
        raise ConfigError(f"--out {out}: it is there already")
    for option, value in (("--good", wanted.good), ("--margin", wanted.margin)):
        if not math.isfinite(value):
            raise ConfigError(f"{option} {value:g}: want a number")
    if wanted.margin < 0:
        raise ConfigError(f"--margin {wanted.margin:g}: want 0 or more")
    assert wanted.form in COLUMNS, wanted.form


def _rows(store: Store, admission: Admission, maker: Maker, wanted: Wanted, progress: Progress) -> Iterator[Row]:
    if wanted.form == "pairs":
        yield from _pair_rows(store, admission, maker, wanted.margin, progress)
        return
    for known in _admitted(store, admission, progress):
        try:
            yield ROWS[wanted.form](known, maker)
        except LeftOut as error:
            admission.refuse(str(error))


def _pair_rows(store: Store, admission: Admission, maker: Maker, margin: float, progress: Progress) -> Iterator[Row]:
    requests = Requests(margin)
    for known in _admitted(store, admission, progress):
        try:
            maker.prompt(known.turn)
            is_edited = maker.kept(known) is not None
        except LeftOut as error:
            admission.refuse(str(error))
            continue
        requests.add(known, is_edited=is_edited)
    pairs = requests.pairs()
    admission.left_out.update(requests.unpaired(pairs))
    task = progress.add_task("pairs", total=len(pairs))
    for start in range(0, len(pairs), _PART):
        part = pairs[start : start + _PART]
        turns = _turns_of(store, part)
        for pair in part:
            yield pair_row(pair, turns[pair.chosen], turns[pair.rejected], maker)
        progress.advance(task, len(part))


def _turns_of(store: Store, pairs: list[Pair]) -> dict[str, KnownTurn]:
    names = {name for pair in pairs for name in (pair.chosen, pair.rejected)}
    with store.look() as view:
        return {known.inference_id: known for known in these_known(view, names)}


def _admitted(store: Store, admission: Admission, progress: Progress) -> Iterator[KnownTurn]:
    with store.look() as view, store.look() as inner:
        task = progress.add_task("choose", total=view.turns.count())
        for known in all_known(view, inner):
            progress.advance(task)
            if admission.admits(known):
                yield known


def _numbered(row: Row, number: int) -> Row:
    if "extra_info" in row:
        row["extra_info"]["index"] = number
    return row


def _told(wanted: Wanted, spec: RewardSpec, admission: Admission, maker: Maker, missing: int) -> dict[str, Any]:
    """Return the manifest, but for what the file says of itself; nothing in it depends on when or where it was made."""
    suites = maker.kept_out.take(admission.compared)
    return dataclasses.asdict(wanted) | {
        "spec": spec.digest,
        "tokenizer": maker.renderer.tokenizer_digest,
        "missing": missing,
        "turns": admission.turns,
        "left_out": dict(sorted(admission.left_out.items())),
        "suites": msgspec.to_builtins(suites),
    }


def _counts(admission: Admission) -> str:
    left_out = ", ".join(f"{count} {why}" for why, count in sorted(admission.left_out.items()))
    return f"{admission.turns} turns, {left_out}"
