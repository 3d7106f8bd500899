"""The two ways into the store: a view, and a unit of work.

Each subject has a repository. Through a `View` repositories read; through `Work` their owners write as well, and what
they write is committed together or not at all. docs/architecture.md says who writes which table."""

from sqlalchemy import Connection

from core.store.accounts.audit import Audit, AuditReader
from core.store.accounts.consents import Consents, ConsentsReader
from core.store.accounts.keys import Keys, KeysReader
from core.store.accounts.spending import Spending, SpendingReader
from core.store.alarms import Alarms, AlarmsReader, References, ReferencesReader
from core.store.archived import ArchiveProgress, ArchiveReader
from core.store.dead_letters import DeadLetters, DeadLettersReader
from core.store.fleet import Experiments, ExperimentsReader, Fleet, FleetReader, Orders, OrdersReader
from core.store.leases import Leases
from core.store.ledger import Ledger, LedgerReader
from core.store.newest.curves import Curves
from core.store.newest.recent import Recent
from core.store.offsets import Offsets, OffsetsReader
from core.store.operators.alerts import Alerts, AlertsReader
from core.store.operators.exclusions import Exclusions, ExclusionsReader
from core.store.operators.version_files import VersionFiles, VersionFilesReader
from core.store.outcomes import Outcomes, OutcomesReader
from core.store.policies import Policies, PoliciesReader, Releases, ReleasesReader
from core.store.rewards import Rewards, RewardsReader
from core.store.turns import Turns, TurnsReader


class View:
    """The store at one moment: all that is read sees the same one."""

    def __init__(self, connection: Connection) -> None:
        self.alarms = AlarmsReader(connection)
        self.told = AlertsReader(connection)
        self.archived = ArchiveReader(connection)
        self.audit = AuditReader(connection)
        self.consents = ConsentsReader(connection)
        self.curves = Curves(connection)
        self.dead_letters = DeadLettersReader(connection)
        self.exclusions = ExclusionsReader(connection)
        self.experiments = ExperimentsReader(connection)
        self.files = VersionFilesReader(connection)
        self.fleet = FleetReader(connection)
        self.keys = KeysReader(connection)
        self.ledger = LedgerReader(connection)
        self.offsets = OffsetsReader(connection)
        self.orders = OrdersReader(connection)
        self.outcomes = OutcomesReader(connection)
        self.policies = PoliciesReader(connection)
        self.recent = Recent(connection)
        self.references = ReferencesReader(connection)
        self.releases = ReleasesReader(connection)
        self.rewards = RewardsReader(connection)
        self.spending = SpendingReader(connection)
        self.turns = TurnsReader(connection)


class Work(View):
    """A unit of work: all that is written commits together when the unit is left, or none of it does."""

    alarms: Alarms
    told: Alerts
    archived: ArchiveProgress
    audit: Audit
    consents: Consents
    dead_letters: DeadLetters
    exclusions: Exclusions
    experiments: Experiments
    files: VersionFiles
    fleet: Fleet
    keys: Keys
    leases: Leases
    ledger: Ledger
    offsets: Offsets
    orders: Orders
    outcomes: Outcomes
    policies: Policies
    references: References
    releases: Releases
    rewards: Rewards
    spending: Spending
    turns: Turns

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.alarms = Alarms(connection)
        self.told = Alerts(connection)
        self.archived = ArchiveProgress(connection)
        self.audit = Audit(connection)
        self.consents = Consents(connection)
        self.dead_letters = DeadLetters(connection)
        self.exclusions = Exclusions(connection)
        self.experiments = Experiments(connection)
        self.files = VersionFiles(connection)
        self.fleet = Fleet(connection)
        self.keys = Keys(connection)
        self.leases = Leases(connection)
        self.ledger = Ledger(connection)
        self.offsets = Offsets(connection)
        self.orders = Orders(connection)
        self.outcomes = Outcomes(connection)
        self.policies = Policies(connection)
        self.references = References(connection)
        self.releases = Releases(connection)
        self.rewards = Rewards(connection)
        self.spending = Spending(connection)
        self.turns = Turns(connection)
