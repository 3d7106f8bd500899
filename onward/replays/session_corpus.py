"""The sessions of `onward midtrain --mix`: a log and archive, scored by their own spec, as a corpus of accepted turns.

The corpus is in the midtraining run's directory, and is made once: a resumed run goes on with the sessions that it
began with, whatever was logged since."""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress

from core.clock import ManualClock
from core.errors import ConfigError
from core.events import Completion, Reward, Topic
from core.ports import Store
from core.store import open_sqlite
from learner.batches.backlog import Bounds
from learner.midtraining.run import Sessions
from learner.midtraining.session_corpus import SessionCorpus
from learner.sequences.resemblance import KeptOut
from onward.replays.history import open_history, period, put_turns_of, require_directory, span, watched
from onward.replays.scratch import scratch
from onward.wiring.foundation import open_foundation, read_directory
from onward.wiring.suites.kept_out import kept_out_of, load_suites
from scoring.rescore import rescore
from serving.rendering import load_renderer

_FILE, _FIGURES = "sessions.jsonl", "sessions.json"


@dataclass(frozen=True)
class SessionChoice:
    """The chosen sessions; `begin` and `end` as in `--from` and `--to`."""

    directory: Path
    begin: str | None
    end: str | None
    min_reward: float


def gather(
    choice: SessionChoice,
    model: Path,
    row_tokens: int,
    out: Path,
    overrides: Mapping[str, str],
    kept_out: KeptOut,
    *,
    again: bool,
) -> Sessions:
    """Gather what `model` may learn from: turns that fit into a row of so many tokens.

    A corpus that was gathered before is returned as it was. Raises ConfigError naming the option at fault, or when no
    turn is left."""
    chosen = asdict(choice) | {"directory": str(choice.directory), "row_tokens": row_tokens}
    file, figures = out / _FILE, out / _FIGURES
    if again and file.exists() and figures.exists():
        known = json.loads(figures.read_text())
        if known["chosen"] != chosen:
            raise ConfigError(f"{figures}: made with other options: {json.dumps(known['chosen'])}")
        return Sessions(file, known)
    require_directory(choice.directory, overrides)
    out.mkdir(parents=True, exist_ok=True)
    bounds = Bounds(load_renderer(model).tokenizer_digest, row_tokens)
    rehearsal = SessionCorpus(bounds, choice.min_reward, kept_out)
    counts = _write(choice, rehearsal, file.with_suffix(".partial"), overrides)
    if not counts.get("taken"):
        raise ConfigError(f"{choice.directory}: no turn to mix in, of these: {json.dumps(counts)}")
    made = {"chosen": chosen, "counts": counts}
    figures.write_text(json.dumps(made) + "\n")
    file.with_suffix(".partial").replace(file)
    return Sessions(file, made)


def forget(out: Path) -> None:
    """Delete the corpus, a copy that only the run needs."""
    for name in (_FILE, _FIGURES):
        (out / name).unlink(missing_ok=True)


def _write(choice: SessionChoice, rehearsal: SessionCorpus, file: Path, overrides: Mapping[str, str]) -> dict[str, int]:
    """Write the turns grouped by session, through a store on disk: memory does not grow with the past."""
    times = period(choice.begin, choice.end)
    with (
        closing(open_foundation(choice.directory, overrides)) as source,
        scratch(file.with_name("scored.partial"), f"{file.parent}") as place,
        closing(open_sqlite(place / "store.db")) as store,
        Progress(console=Console(stderr=True)) as progress,
        file.open("wb") as out,
    ):
        history = open_history(source, Topic.TURNS, *times)
        first, last = span(watched(history, progress, "look"), choice.directory)
        records = put_turns_of(watched(history, progress, "sessions"), store)
        with source.store.look() as view:
            rehearsal.leave_out(view.exclusions.after())
        deque(rescore(records, source.spec, store, ManualClock(first), until=last), maxlen=0)
        for document in _documents(store, rehearsal):
            out.write(msgspec.json.encode(document) + b"\n")
    return dict(sorted(rehearsal.counts.items()))


def _documents(store: Store, rehearsal: SessionCorpus) -> Iterator[dict[str, Any]]:
    """Session by session, in an order that the records alone say."""
    with store.look() as view, store.look() as inner:
        for namespace, name in view.turns.sessions():
            session: list[Completion] = inner.turns.of_session(namespace, name)
            found = inner.rewards.of_turns([turn.inference_id for turn in session])
            last: dict[Any, Reward] = {reward.inference_id: reward for reward in found}
            yield from rehearsal.documents(session, last)


def suites_of(
    given: Sequence[Path], directory: Path | None = None, overrides: Mapping[str, str] | None = None
) -> KeptOut:
    """Return what must not be learned: of the given suites, and of those that the directory's learner keeps out.

    Raises ConfigError."""
    own: tuple[Path, ...] = ()
    if directory is not None:
        require_directory(directory, overrides)
        own = read_directory(directory, overrides or {})[1].learner.admission.keep_out
    return kept_out_of(load_suites([*given, *own]))
