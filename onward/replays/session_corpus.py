"""The sessions of `onward midtrain --mix` and `onward internalise`, as a corpus of accepted turns.

They are those of a log and archive, scored by their own spec.

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
from core.operations.exclusions import Exclusion, is_excluded
from core.ports import Store
from core.settings import Settings
from core.settings.policies import teaches_base
from core.store import open_sqlite
from learner.batches.backlog import Bounds
from learner.midtraining.run import Sessions
from learner.midtraining.session_corpus import SessionCorpus
from learner.sequences.kept_out import EVAL_SOLUTION, KeptOut
from onward.replays.history import exclusions_of, open_history, period, put_turns_of, require_directory, span, watched
from onward.replays.scratch import scratch
from onward.wiring.foundation import open_foundation
from onward.wiring.learner import suites_kept_out
from scoring.rescore import rescore
from serving.rendering import ModelRenderer, load_renderer

_INSTRUCTING = ("system", "developer")
_FILE, _FIGURES = "sessions.jsonl", "sessions.json"


@dataclass(frozen=True)
class Choice:
    """The chosen sessions; `begin` and `end` as in `--from` and `--to`.

    `instructions` stand in place of those that the sessions began with; an empty text leaves none."""

    directory: Path
    begin: str | None
    end: str | None
    min_reward: float
    instructions: str | None = None


def gather(
    choice: Choice, model: Path, row_tokens: int, out: Path, overrides: Mapping[str, str], *, again: bool
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
    renderer = load_renderer(model)
    other = None if choice.instructions is None else OtherInstructions(renderer, choice.instructions)
    bounds = Bounds(renderer.tokenizer_digest, row_tokens)
    written = _write(choice, bounds, other, file.with_suffix(".partial"), overrides)
    if not written["counts"].get("taken"):
        raise ConfigError(f"{choice.directory}: no turn to learn from, of these: {json.dumps(written['counts'])}")
    made = {"chosen": chosen, **written}
    figures.write_text(json.dumps(made) + "\n")
    file.with_suffix(".partial").replace(file)
    return Sessions(file, made)


def forget(out: Path) -> None:
    """Delete the corpus, a copy that only the run needs."""
    for name in (_FILE, _FIGURES):
        (out / name).unlink(missing_ok=True)


class OtherInstructions:
    """Makes the prompt of a session's first turn anew, with other instructions."""

    def __init__(self, renderer: ModelRenderer, text: str) -> None:
        self._renderer, self._text = renderer, text

    def __call__(self, first: Completion) -> tuple[int, ...] | None:
        """Return the other prompt; None where the turn had no instructions, or its prompt cannot be made again."""
        told = first.messages[0]
        if told["role"] not in _INSTRUCTING:
            return None
        if self._renderer.render(first.messages, first.tools) != first.prompt_token_ids:
            return None
        other = [{**told, "content": self._text}] if self._text else []
        return self._renderer.render([*other, *first.messages[1:]], first.tools)


def _write(
    choice: Choice, bounds: Bounds, other: OtherInstructions | None, file: Path, overrides: Mapping[str, str]
) -> dict[str, Any]:
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
        deque(rescore(records, source.spec, store, ManualClock(first), until=last), maxlen=0)
        kept_out = KeptOut(suites_kept_out(source.settings.learner))
        rehearsal = SessionCorpus(bounds, choice.min_reward, kept_out, other)
        for document in _documents(store, rehearsal, exclusions_of(source.store), source.settings):
            out.write(msgspec.json.encode(document) + b"\n")
    suites = kept_out.take(rehearsal.counts["taken"] + rehearsal.counts[EVAL_SOLUTION])
    return {"counts": dict(sorted(rehearsal.counts.items())), "suites": msgspec.to_builtins(suites)}


def _documents(
    store: Store, rehearsal: SessionCorpus, orders: Sequence[Exclusion], settings: Settings
) -> Iterator[dict[str, Any]]:
    """Session by session, in an order that the records alone say.

    Not among what is taken is what orders exclude, and whatever is of an organisation that the base may not learn from:
    everybody's model is made of it."""
    with store.look() as view, store.look() as inner:
        for namespace, name in view.turns.sessions():
            if not teaches_base(settings.policies, settings.sharing, namespace):
                continue
            session: list[Completion] = inner.turns.of_session(namespace, name)
            found = inner.rewards.of_turns([turn.inference_id for turn in session])
            last: dict[Any, Reward] = {reward.inference_id: reward for reward in found}
            usable = {
                turn.inference_id: last[turn.inference_id]
                for turn in session
                if turn.inference_id in last and _is_usable(last[turn.inference_id], turn, orders)
            }
            yield from rehearsal.documents(session, usable)


def _is_usable(reward: Reward, turn: Completion, orders: Sequence[Exclusion]) -> bool:
    return not reward.void and not is_excluded(orders, turn, reward)
