"""What targets are told: the alerts of Prometheus' Alertmanager, as its webhooks have them (version 4) and its API v2.

An alert has an alarm's names, its meaning, advice and figures, but nothing that users said and no names of clients'
tools."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from core.operations.alarm_advice import ADVICE, page_of
from core.operations.alarms import StoredAlarm, in_words
from core.operations.alerts import Alert

HOLDS_FOR: Final = timedelta(minutes=5)
"""How long an Alertmanager takes an alert for one that goes on, if it is not told again."""
_NOT_YET: Final = "0001-01-01T00:00:00Z"  # the end of what has none, in Go's words


def webhook_body(target: str, alert: Alert, console: str | None) -> bytes:
    """Return the body of a webhook: a group of one alert."""
    told = _alert(alert.alarm, console)
    is_over = alert.change == "closed"
    status = "resolved" if is_over else "firing"
    ends_at = _text(alert.at) if is_over else _NOT_YET
    fingerprint = hashlib.sha256(alert.alarm.alarm_id.encode()).hexdigest()[:16]
    group = {"alarm_id": alert.alarm.alarm_id}
    body: dict[str, Any] = {
        "version": "4",
        "groupKey": f'{{}}:{{alarm_id="{alert.alarm.alarm_id}"}}',
        "truncatedAlerts": 0,
        "status": status,
        "receiver": target,
        "groupLabels": group,
        "commonLabels": told["labels"],
        "commonAnnotations": told["annotations"],
        "externalURL": console or "",
        "alerts": [{"status": status, **told, "endsAt": ends_at, "fingerprint": fingerprint}],
    }
    return msgspec.json.encode(body)


def alertmanager_body(alert: Alert, console: str | None, now: datetime) -> bytes:
    """Return the body of `POST /api/v2/alerts`. What is open ends in a while, unless it is told again before that."""
    ends_at = alert.at if alert.change == "closed" else now + HOLDS_FOR
    return msgspec.json.encode([{**_alert(alert.alarm, console), "endsAt": _text(ends_at)}])


def _alert(alarm: StoredAlarm, console: str | None) -> dict[str, Any]:
    found = alarm.opening
    labels = {
        "alertname": found.monitor,
        "severity": found.severity,
        "service": "onward",
        "namespace": found.namespace,
        "workload": found.workload,
        "alarm_id": found.alarm_id,
    }
    figures = in_words({name: value for name, value in found.figures.items() if ":" not in name})
    annotations = {
        "summary": found.meaning,
        "advice": ADVICE.get(found.monitor, ""),
        "figures": figures,
        "holds": ", ".join(found.holds),
        "runbook_url": _below(console, page_of(found.monitor)) if console else "",
    }
    return {
        "labels": _without_empty(labels),
        "annotations": _without_empty(annotations),
        "startsAt": _text(found.opened_at),
        "generatorURL": console or "",
    }


def _below(console: str, page: str) -> str:
    """Return the address of a page of the documentation, of the service whose console has that address."""
    at = urlsplit(console)
    return f"{at.scheme}://{at.netloc}{at.path.rstrip('/')}/{page}"


def _without_empty(texts: dict[str, str]) -> dict[str, str]:
    """Leave out what is empty, as Alertmanager does."""
    return {name: text for name, text in texts.items() if text}


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
