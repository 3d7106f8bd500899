"""Migration of topics and tables: created, or upgraded to this build."""

from core.settings import Settings
from onward.wiring.foundation import is_distributed


def migrate(settings: Settings) -> None:
    """Migrate the topics and tables of mode `distributed`.

    The embedded log and store upgrade themselves when they are opened. Raises ConfigError naming the setting at fault,
    Unavailable while Kafka or Postgres is unavailable."""
    if not is_distributed(settings):
        return
    from core.store.database.migrate import migrate_postgres
    from ingest.kafka.topics import migrate as migrate_topics

    migrate_topics(settings.kafka, settings.ingest.partitions)
    migrate_postgres(settings.postgres)
