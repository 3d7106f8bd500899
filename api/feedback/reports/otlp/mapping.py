"""From an event to the reports that the table makes of it. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from api.feedback.reports.joining import Clues
from api.feedback.reports.links import Link
from api.feedback.reports.otlp.events import ClientEvent, ClientSpan, as_name, as_text
from api.feedback.reports.otlp.table import EventSpec, EventTable, LinkSpec, Value
from api.feedback.reports.report import ReportedOutcome, digest_of
from core.reward_spec import OutcomeSpec, RewardSpec

_WHOLE: dict[float, bool] = {0: False, 1: True}


def reports_of(event: ClientEvent, table: EventTable, rewards: RewardSpec, now: datetime) -> list[ReportedOutcome]:
    """Return what the event says a user did: mostly nothing. Raises ValueError for a time beyond the calendar's."""
    specs = list(_specs(event, table))
    digest = digest_of(event.identity) if specs else ""
    return [
        ReportedOutcome(
            source=spec.source,
            metric=metric,
            value=value,
            clues=_clues(event, spec, now),
            digest=digest,
            evidence=None if spec.evidence is None else as_text(event.get(spec.evidence)) or None,
            said_by=spec.said_by,
            tags=tags,
        )
        for spec in specs
        for metric, value, tags in _said(event, spec, rewards)
    ]


def _specs(event: ClientEvent, table: EventTable) -> Iterator[EventSpec]:
    for spec in table.of(event.names):
        if spec.scope in (None, event.scope) and _is_meant(event, spec):
            yield spec


def _is_meant(event: ClientEvent, spec: EventSpec) -> bool:
    return all(
        as_text(event.get(name)).lower() in {value.lower() for value in values} for name, values in spec.only.items()
    )


def _said(event: ClientEvent, spec: EventSpec, rewards: RewardSpec) -> Iterator[tuple[str, Value, dict[str, str]]]:
    for name, meanings in spec.says.items():
        said = as_text(event.get(name)).lower()
        for meaning, outcomes in meanings.items():
            if said == meaning.lower():
                for metric, value in outcomes.items():
                    yield metric, value, {}
    for metric, name in spec.measures.items():
        if (number := _number(event.get(name))) is not None:
            yield metric, number, {}
    if spec.named is not None and (number := _number(event.get(spec.named.value))) is not None:
        given = as_name(event.get(spec.named.by))
        metric = given if given in rewards.outcomes else spec.named.otherwise
        yield metric, _as_wanted(number, rewards.outcomes.get(metric)), {spec.named.by: given} if given else {}


def _number(value: Any) -> float | None:
    """Return a number, also one that was sent as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _as_wanted(number: float, outcome: OutcomeSpec | None) -> Value:
    """Return a score of 0 or 1 as false or true where the outcome is one of these."""
    is_boolean = outcome is not None and outcome.type == "boolean"
    return _WHOLE[number] if is_boolean and number in _WHOLE else number


def _clues(event: ClientEvent, spec: EventSpec, now: datetime) -> Clues:
    answers = [as_name(event.get(name)) for name in spec.answers]
    return Clues(
        answers=tuple(filter(None, answers)),
        span=as_name(event.span) or None,
        tool_call=event.named(spec.tool_call),
        conversation=event.named(spec.conversation),
        about_session=spec.about == "session",
        at=event.at(now),
    )


def link_of(span: ClientSpan, spec: LinkSpec) -> Link | None:
    """Return what a span tells of an answer's names; None where it has no id of one."""
    answers = tuple(name for each in spec.answers if (name := as_name(span.attributes.get(each))))
    names = (*(as_name(span.attributes.get(each)) for each in spec.names), as_name(span.name))
    names = tuple(filter(None, names))
    within = next((name for each in spec.conversations if (name := as_name(span.attributes.get(each)))), "")
    return Link(answers=answers, names=names, within=within) if answers else None
