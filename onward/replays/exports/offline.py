"""`onward export --as`: what a past teaches, in the forms that trainers read."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard, get_args

from rich.console import Console
from rich.progress import Progress

from core.errors import ConfigError
from core.store import open_sqlite
from learner.batches.backlog import Bounds
from learner.batches.teachable import Teachable
from onward.replays.exports.choice import TurnChoice
from onward.replays.exports.conversations import Conversations
from onward.replays.exports.files import RowFile, require_free
from onward.replays.exports.groups import Dpo, Grpo
from onward.replays.exports.past import ChosenPast, Logged
from onward.replays.exports.rows import ExportForm, Kto, Lessons, Row, Sft, TokenRows
from onward.replays.history import require_directory
from onward.replays.provenance import VersionRange, provenance_of
from onward.replays.scratch import scratch
from onward.wiring.foundation import Foundation, open_foundation
from onward.wiring.suites.kept_out import kept_out
from serving.rendering import load_renderer


class ExportTally:
    """What all chosen turns have in common, and how many there are."""

    def __init__(self) -> None:
        self.turns = 0
        self.versions = VersionRange()
        self._times: tuple[datetime, datetime] | None = None
        self._tokenizers, self._specs = Counter[str](), Counter[str]()

    def add(self, session: Sequence[Logged]) -> None:
        self.turns += len(session)
        self._tokenizers.update(each.turn.tokenizer_digest for each in session)
        self._specs.update(each.reward.spec for each in session if each.reward is not None)
        times = [each.turn.received_at for each in session]
        self._times = min([*times, *(self._times or ())]), max([*times, *(self._times or ())])
        for each in session:
            self.versions.add_turn(each.turn)

    def told(self) -> dict[str, Any]:
        """Return it for a file in JSON."""
        return {
            "received_at": None if self._times is None else [time.isoformat() for time in self._times],
            "tokenizers": dict(self._tokenizers),
            "reward_specs": dict(self._specs),
        }


FormName = Literal["turns", "kto", "dpo", "sft", "grpo"]
_GONE: Final = "turn_gone"
"""Of a turn that has a reward and was deleted, from the log and from the archive."""


@dataclass(frozen=True)
class Exported:
    """What came of an export. `turns` are the chosen ones; `left_out` counts those that are in no row, by reason."""

    turns: int
    rows: int
    left_out: dict[str, int]
    missing: int

    @property
    def counts(self) -> dict[str, Any]:
        return {"turns": self.turns, "rows": self.rows, "left_out": self.left_out, "missing": self.missing}


def export_form(
    directory: Path,
    out: Path,
    form: str,
    choice: TurnChoice,
    overrides: Mapping[str, str],
    least: float | None = None,
) -> Exported:
    """Write the chosen turns in a form to `out`, and beside it where they come from; nothing where there is no row.

    `least`: the least reward of form `sft`. Raises ConfigError naming the option at fault."""
    if not _is_form(form):
        raise ConfigError(f"--as {form}: there are {', '.join(get_args(FormName))}")
    if least is not None and form != "sft":
        raise ConfigError("--least-reward: only with --as sft")
    require_directory(directory, overrides)
    require_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        closing(open_foundation(directory, overrides)) as source,
        scratch(out.with_name(f"{out.name}.scratch"), f"--out {out}") as place,
        closing(open_sqlite(place / "store.db")) as store,
        Progress(console=Console(stderr=True)) as progress,  # on stdout is what is returned
    ):
        past = ChosenPast(source, store, choice)
        lessons = _lessons(source)
        past.read(progress)
        made, tally = _form(form, past, lessons, least), ExportTally()
        with RowFile(out, made.columns) as file:
            file.write(_rows(past, made, tally))
            gone = {_GONE: past.gone} if past.gone else {}
            left_out = dict(sorted(lessons.left_out.items())) | gone
            done = Exported(tally.turns, file.rows, left_out, past.missing)
            if done.rows:
                origin = {"form": form, "choice": dict(choice.told)} | provenance_of(source, tally.versions)
                file.finish(origin | done.counts | tally.told())
    return done


def _is_form(name: str) -> TypeGuard[FormName]:
    return name in get_args(FormName)


def _lessons(source: Foundation) -> Lessons:
    """Return what may teach a model with this tokenizer, as the directory's learner decides it."""
    renderer = load_renderer(source.model, family=source.settings.serving.family)
    suites = kept_out(source.settings.learner)
    with source.store.look() as view:
        excluded = view.exclusions.after()
    return Lessons(Teachable(Bounds(renderer.tokenizer_digest), suites, excluded), Conversations(renderer))


def _form(name: FormName, past: ChosenPast, lessons: Lessons, least: float | None) -> ExportForm:
    match name:
        case "turns":
            return TokenRows(past, lessons)
        case "kto":
            return Kto(lessons)
        case "sft":
            return Sft(lessons, least)
        case "dpo":
            return Dpo(past, lessons)
        case "grpo":
            return Grpo(past, lessons)


def _rows(past: ChosenPast, form: ExportForm, tally: ExportTally) -> Iterator[Row]:
    for session in past.sessions():
        tally.add(session)
        yield from form.of_session(session)
    yield from form.at_end()
