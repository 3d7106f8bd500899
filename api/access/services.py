"""The services that the HTTP application is given; `onward.wiring` fills them in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.events import Topic
from core.ports import Clock, Drafts, EventLog, LiveState, Policy, Renderer, Store, Traffic
from core.ports.exclusions import ExclusionOrders
from core.records.audit_head import HeadFile
from core.reward_spec import RewardSpec
from core.settings import ApiSettings, AuditSettings, PrivacySettings, QuotaSettings

OK = "ok"
DEGRADED = "degraded"  # the first word of a state that costs only speed


@dataclass(frozen=True)
class ApiServices:
    settings: ApiSettings
    log: EventLog
    store: Store
    live_state: LiveState
    policy: Policy
    renderer: Renderer
    spec: RewardSpec
    clock: Clock
    model_name: str
    cluster: str
    """The name of the engines in the store, `serving.cluster`."""
    readiness: Callable[[], Mapping[str, str]]
    """Each component: "ok", or what is wrong with it."""
    traffic: Traffic
    readers: Mapping[str, Topic]
    """The stages that keep in the store how far they have read a topic, as the group of their name."""
    reader: Sequence[str] = ()
    """The command that starts a process for large bodies (`api.requests.reader.serve_jobs`); empty: a thread."""
    learns: bool = True
    """Whether a learner is wanted, here or in another process."""
    user_share: float = 1.0
    """What one user is at most of what the learner learns; 1: no bound."""
    disk: Callable[[], Mapping[str, int]] = dict
    """Bytes by what they hold (`log`, `store`, `blobs`, `spool`), as far as they are on this machine, and `free`."""
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    head: HeadFile | None = None
    """Where the head of the audit trail is kept beside the store; None: nowhere."""
    drafts: Drafts | None = None
    """The drafts of eval cases that people decide on; None: there is no suite."""
    exclusions: ExclusionOrders | None = None
    """Who foresees and orders what is excluded from learning; None: nothing is learned here."""
    site: Path | None = None
    """The directory of the built documentation, which may not exist yet."""
