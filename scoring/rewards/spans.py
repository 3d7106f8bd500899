"""The parts of a reward that are about some of a turn's tokens: credits, hints, and the text that a user wrote instead.

An outcome is about the tokens of its target; with edits, it says of each token whether it was kept; any other outcome
is about the whole turn. A token's credit is what the turn would be worth if only that had been said which is about this
token: outcomes by their aggregations, defaults, effort and faults, clipped as for a whole turn. If all tokens would get
the turn's own value, there are no credits."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

import msgspec

from core.events import Credit, Hint, Outcome, TextEdit
from core.ids import UserHash
from core.operations.ledger import LedgerEntry
from core.records.text_edits import are_sound
from core.reward_spec import Measure, RewardRules
from core.reward_spec.roles import BLAME
from scoring.rewards.amendments import Standing
from scoring.rewards.worth import Heard, contribution, without_repetition, without_replaced

Span = tuple[int, int]
_FATES: Final[dict[Measure, tuple[float, float]]] = {"kept": (1.0, 0.0), "survived": (1.0, 0.0), "distance": (0.0, 1.0)}
"""What a measure says of a token that was kept, and of one that was not."""
_MOST_SPANS: Final = 256
"""Parts that a turn is cut into; beyond, all its tokens share its value."""
_MOST_LOOKUPS: Final = 8192
"""Parts times outcomes, and parts that all outcomes tell apart, each for itself; beyond, all tokens share the value, so
that a turn of which somebody says ever more takes no more time to decide."""
MOST_HINTS: Final = 8
LONGEST_HINT: Final = 2000  # characters


class _Said(msgspec.Struct, frozen=True):
    """What an outcome says of tokens [start, end); None: nothing."""

    start: int
    end: int
    entry: Standing | None


_start = attrgetter("start")


def credits_of(
    turn: LedgerEntry,
    said: Heard,
    whole: Mapping[str, float],
    faults: Mapping[str, float],
    rules: RewardRules,
    value: float,
) -> tuple[Credit, ...]:
    """Return the credits of a turn that is worth `value`; () where all its tokens share that.

    `whole`: what is added for the turn as a whole; `faults`: what is added for faults, maybe of some tokens alone."""
    outcomes = [entry.outcome for entries in said.values() for entry in entries]
    if sum(2 * len(outcome.edits) + 1 for outcome in outcomes) > _MOST_LOOKUPS:
        return ()
    pieces = {name: [_pieces(entry, turn, rules) for entry in entries] for name, entries in said.items()}
    blamed = {fault: _blamed(turn, fault) for fault in faults}
    spans = [piece for each in pieces.values() for cut in each if cut is not None for piece in cut]
    places = {0, turn.facts.tokens, *(end for piece in spans for end in (piece.start, piece.end))}
    places |= {end for blame in blamed.values() if blame is not None for span in blame for end in span}
    if not 2 < len(places) <= _MOST_SPANS + 1 or (len(places) - 1) * len(outcomes) > _MOST_LOOKUPS:
        return ()
    ends = sorted(places)
    credits: list[Credit] = []
    for start, end in pairwise(ends):
        heard = {
            name: there
            for name, entries in said.items()
            if (
                there := [
                    each for entry, cut in zip(entries, pieces[name], strict=True) if (each := _at(entry, cut, start))
                ]
            )
        }
        parts = [
            contribution(turn, name, there, rules) for name, there in without_repetition(turn, heard, rules).items()
        ]
        parts += whole.values()
        parts += [worth for fault, worth in faults.items() if _is_in(start, blamed[fault])]
        here = min(max(math.fsum(parts), rules.clip[0]), rules.clip[1])
        if credits and credits[-1].value == here:
            start = credits.pop().start
        credits.append(Credit(start=start, end=end, value=here))
    return () if all(credit.value == value for credit in credits) else tuple(credits)


def _pieces(entry: Standing, turn: LedgerEntry, rules: RewardRules) -> list[_Said] | None:
    """Return what an outcome says of which tokens, none twice, in order; None when it speaks of the whole turn."""
    outcome = entry.outcome
    target = target_of(outcome, turn)
    measure = rules.outcomes[outcome.name].measure
    if measure is None or not outcome.edits or not are_sound(outcome.edits, turn.facts.tokens):
        return None if target is None else _in_order([_Said(*target, entry), *_silence(target, turn)])
    kept, lost = (
        msgspec.structs.replace(entry, outcome=msgspec.structs.replace(outcome, value=fate)) for fate in _FATES[measure]
    )
    within = [target] if target is not None else list(turn.facts.answers) or [(0, turn.facts.tokens)]
    found = [] if target is None else list(_silence(target, turn))
    for start, end in within:
        place = start
        for edit in outcome.edits:
            first, last = max(edit.start, place), min(edit.end, end)
            if first < last:
                found += [_Said(place, first, kept), _Said(first, last, lost)]
                place = last
        found.append(_Said(place, end, kept))
    return _in_order(found)


def _in_order(pieces: Sequence[_Said]) -> list[_Said]:
    return sorted((piece for piece in pieces if piece.start < piece.end), key=_start)


def _silence(target: Span, turn: LedgerEntry) -> tuple[_Said, _Said]:
    return _Said(0, target[0], None), _Said(target[1], turn.facts.tokens, None)


def _at(entry: Standing, pieces: Sequence[_Said] | None, place: int) -> Standing | None:
    """Return what an outcome says of a token; its own words where it says nothing else of it."""
    if pieces is None:
        return entry
    last = bisect_right(pieces, place, key=_start) - 1
    return pieces[last].entry if last >= 0 and place < pieces[last].end else entry


def target_of(outcome: Outcome, turn: LedgerEntry) -> Span | None:
    """Return the tokens of the outcome's target; None when it has none, or one that is not known in the turn."""
    if outcome.inference_id is None:
        return None
    if outcome.target_range is not None:
        start, end = max(outcome.target_range.start, 0), min(outcome.target_range.end, turn.facts.tokens)
        return (start, end) if start < end else None
    if outcome.target_call is None:
        return None
    named = outcome.target_call.tool_call_id
    return next(((call.start, call.end) for call in turn.facts.calls if call.id == named), None)


def _blamed(turn: LedgerEntry, fault: str) -> list[Span] | None:
    """Return the tokens that a fault is of; None for the whole turn."""
    if fault == "unbacked_claim":
        return list(turn.facts.claims) or None
    if fault != "malformed_call":
        return None
    return [(call.start, call.end) for call in turn.facts.calls if call.refused] or None


def _is_in(place: int, spans: Sequence[Span] | None) -> bool:
    return spans is None or any(start <= place < end for start, end in spans)


# ------------------------------------------------------------------------------------------ words and demonstrations


def hints_of(turn: LedgerEntry, about: Sequence[Standing], rules: RewardRules) -> tuple[Hint, ...]:
    """Return what was said of the answer in words: the last `MOST_HINTS`, each up to `LONGEST_HINT` characters."""
    found: list[Hint] = []
    if turn.facts.tokens:
        for entry in reversed(without_replaced(about, rules)):
            text = _words(entry.outcome, rules).strip()[:LONGEST_HINT]
            if text:
                start, end = target_of(entry.outcome, turn) or (0, turn.facts.tokens)
                found.append(Hint(start=start, end=end, text=text, outcome_id=entry.outcome.outcome_id))
            if len(found) == MOST_HINTS:
                break
    return tuple(reversed(found))


def _words(outcome: Outcome, rules: RewardRules) -> str:
    """Return the words of an outcome: a comment, or what was said with blame or with a run that failed."""
    role, spec = rules.roles.get(outcome.name), rules.outcomes.get(outcome.name)
    if outcome.inference_id is None or spec is None or spec.measure is not None or not outcome.learn:
        return ""
    if role == "words":
        return outcome.value if isinstance(outcome.value, str) else ""
    blames = bool(outcome.value) if role in BLAME else role == "check" and not outcome.value
    return outcome.evidence or "" if blames else ""


def demonstrated(turn: LedgerEntry, about: Sequence[Standing], rules: RewardRules) -> tuple[TextEdit, ...]:
    """Return what a user wrote in place of the answer's own: the last text of the answer, and of each of its calls."""
    texts = _last_texts(turn, about, rules)
    found = sorted((edit for text in texts for edit in text.edits), key=lambda edit: (edit.start, edit.end))
    return tuple(found) if found and are_sound(found, turn.facts.tokens) else ()


def author_of(turn: LedgerEntry, about: Sequence[Standing], rules: RewardRules) -> UserHash | None:
    """Return who wrote what is demonstrated: of several users the last; None where nothing is, or nobody is told."""
    if not demonstrated(turn, about, rules):
        return None
    return next((text.user_id for text in _last_texts(turn, about, rules) if text.user_id is not None), None)


def _last_texts(turn: LedgerEntry, about: Sequence[Standing], rules: RewardRules) -> list[Outcome]:
    """Return the outcomes with the last exact text of the answer, and of each of its calls, the newest first."""
    last: dict[str | None, Outcome] = {}
    for entry in reversed(about):
        outcome = entry.outcome
        part = None if outcome.target_call is None else outcome.target_call.tool_call_id
        if part not in last and _tells_a_text(outcome, rules):
            last[part] = outcome
    return [each for each in last.values() if each.learn and each.edits and are_sound(each.edits, turn.facts.tokens)]


def _tells_a_text(outcome: Outcome, rules: RewardRules) -> bool:
    """Return whether an outcome says what somebody wrote, with edits or, where these are not exact, without."""
    spec = rules.outcomes.get(outcome.name)
    if outcome.inference_id is None or spec is None:
        return False
    is_measured = spec.measure in ("kept", "distance") and bool(outcome.edits or outcome.evidence)
    return is_measured or rules.roles.get(outcome.name) == "demonstration"
