"""The services that the HTTP application is given; `onward.wiring` fills them in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.events import Topic
from core.operations.drafts import Drafts
from core.ports import Blobs, Clock, EventLog, LiveState, Policy, Renderer, Store, Traffic
from core.records.audit_head import HeadFile
from core.records.clusters import ClusterStanding
from core.reward_spec import RewardSpec
from core.settings import ApiSettings, AuditSettings, CostSettings, PolicySettings, PrivacySettings, QuotaSettings

OK = "ok"
DEGRADED = "degraded"  # the first word of a state that costs only speed


@dataclass(frozen=True)
class ApiServices:
    settings: ApiSettings
    log: EventLog
    store: Store
    blobs: Blobs
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
    disk: Callable[[], Mapping[str, int]] = dict
    """Bytes by what they hold (`log`, `store`, `blobs`, `spool`), as far as they are on this machine, and `free`."""
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    """What of users' words is replaced before it goes anywhere."""
    erasure_days: float = 30.0
    """The time within which an order to erase is to be obeyed everywhere, `privacy.erasure_days`."""
    drafts: Drafts | None = None
    """The drafts of the suite that is mined from sessions; None: there are none here."""
    policies: Mapping[str, PolicySettings] = field(default_factory=dict)
    """The policies of organisations, by name."""
    clusters: Callable[[], Sequence[ClusterStanding]] = tuple
    """What the clusters say that share a bucket with this one; none where it is the only one. Raises Unavailable."""
    is_edge: bool = False
    """Whether another cluster, home, learns from what is said here: what is excluded from that is said there."""
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    costs: CostSettings = field(default_factory=CostSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    head: HeadFile | None = None
    """Where the head of the audit trail is kept beside the store; None: nowhere."""
    site: Path | None = None
    """The directory of the built documentation, which may not exist yet."""
