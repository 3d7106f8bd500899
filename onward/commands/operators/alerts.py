"""A test alarm for all targets, which shows whether they can be reached and take the signature and the token."""

import asyncio
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import httpx
from msgspec.structs import replace

from core.clock import SystemClock
from core.errors import ConfigError, OnwardError
from core.ids import Namespace
from core.operations.alarms import Opening, StoredAlarm
from core.operations.alerts import Alert
from core.settings import AlertSettings
from onward.output import console
from onward.wiring.foundation import read_directory
from scoring.alerts.sending import Untold, tell


def tell_of_a_test(directory: Path, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError where nobody is to be told, OnwardError where somebody was not."""
    _, settings = read_directory(directory, overrides)
    alerts = settings.alerts
    if not alerts.targets:
        raise ConfigError("alerts.targets is empty: there is nobody to tell")
    faults = asyncio.run(_tell_all(alerts, SystemClock().now()))
    shown = console()
    for name in alerts.targets:
        shown.print(f"{name}: {faults.get(name, 'told')}")
    if faults:
        raise OnwardError(f"{len(faults)} of {len(alerts.targets)} targets did not take it")


async def _tell_all(settings: AlertSettings, now: datetime) -> dict[str, str]:
    """Return what was wrong, by target."""
    opened = StoredAlarm(sequence=0, opening=_opening(now))
    faults: dict[str, str] = {}
    async with httpx.AsyncClient() as client:
        for name, target in settings.targets.items():
            try:
                for alert in _changes(opened, now):
                    await tell(client, name, target, alert, settings.console, now)
            except Untold as error:
                faults[name] = str(error)
    return faults


def _changes(opened: StoredAlarm, now: datetime) -> tuple[Alert, Alert]:
    return Alert(alarm=opened, change="opened"), Alert(alarm=replace(opened, closed_at=now), change="closed")


def _opening(now: datetime) -> Opening:
    return Opening(
        alarm_id=f"test-{secrets.token_hex(4)}",
        monitor="test",
        meaning="somebody tries whether alerts arrive: nothing is wrong",
        severity="info",
        namespace=Namespace(""),
        workload="",
        figures={},
        holds=(),
        opened_at=now,
        window_start=now,
        window_end=now,
    )
