"""Topics and tables, made or brought up to this build."""

from core.settings import Settings
from onward.wiring.foundation import is_distributed


def migrate(settings: Settings) -> None:
    """Of mode distributed; the embedded log and store see to themselves when they are opened. Raises ConfigError
    naming the setting at fault, Unavailable where Kafka or Postgres is away."""
    if not is_distributed(settings):
        return
    from core.store.database.migrate import migrate_postgres
    from ingest.kafka.topics import migrate as migrate_topics

    migrate_topics(settings.kafka, settings.ingest.partitions)
    migrate_postgres(settings.postgres)
