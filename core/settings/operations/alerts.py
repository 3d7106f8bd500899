"""Alerts: who is told of alarms, and how long it is tried."""

from typing import Annotated, Literal

from pydantic import Field

from core.events import Severity
from core.section import Section
from core.settings.http.api import KEY_NAME

_HEADER = r"^[!-~]+$"


class AlertTargetSettings(Section):
    """Whoever is told. Redirects are not followed, so that words and secrets go nowhere else."""

    url: str = Field(repr=False, pattern=r"^https?://[^\s/@?#]+(/[^\s#]*)?$")
    """Where to: a webhook's whole address; of an Alertmanager the address before `/api/v2/alerts`. Without name and
    password."""
    kind: Literal["webhook", "alertmanager"] = "webhook"
    """`webhook`: one request for each alarm that opens, and one when it closes, in the form of Alertmanager's webhooks.
    `alertmanager`: an Alertmanager, which groups, silences and passes on; it is told again and again while an alarm is
    open."""
    secret: str | None = Field(default=None, repr=False, min_length=16)
    """Signs each request, as Standard Webhooks says; None: unsigned."""
    token: str | None = Field(default=None, repr=False, pattern=_HEADER)
    """A bearer token that is sent along; None: none."""
    severities: tuple[Severity, ...] = Field(default=("critical", "warning"), min_length=1)
    """Alarms of which weight are told."""
    namespaces: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """Alarms of these namespaces alone; None: of all, and those about stages, which are of no namespace."""
    timeout_s: float = Field(default=10.0, gt=0, le=60)
    """How long one request may take."""


class AlertSettings(Section):
    targets: dict[Annotated[str, Field(pattern=KEY_NAME)], AlertTargetSettings] = Field(default={})
    """Who is told of alarms, by a name of your choice: see below."""
    console: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """The console's address as people reach it, which alerts link to; None: they have no link."""
    retry_s: float = Field(default=1.0, gt=0)
    """How long after the first failure it is tried again; the waits double."""
    most_retry_s: float = Field(default=300.0, gt=0)
    """The longest of these waits."""
    give_up_s: float = Field(default=86400.0, gt=0)
    """How long after it closed an alarm is told no more; one that is open is told, however old it is."""
