"""Alerts: changes of alarms that somebody is to be told, each of them once."""

from datetime import datetime
from typing import Literal

import msgspec

from core.operations.alarms import StoredAlarm

Change = Literal["opened", "closed"]
Result = Literal["delivered", "refused", "given_up", "unwanted"]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """That an alarm opened, or closed."""

    alarm: StoredAlarm
    change: Change

    @property
    def key(self) -> str:
        """The same for each attempt to tell it: who gets it twice knows by this that it is one."""
        return f"{self.alarm.alarm_id}.{self.change}"

    @property
    def at(self) -> datetime:
        """When it changed."""
        closed_at = self.alarm.closed_at
        return self.alarm.opening.opened_at if self.change == "opened" or closed_at is None else closed_at
