"""Settings of mode `distributed` on the tests' own Kafka prefix, database and Redis prefix."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from services import require_services


@contextmanager
def distributed_settings() -> Iterator[dict[str, Any]]:
    """For `--set`. The database goes afterwards; topics and keys stay under their prefix."""
    services, name = require_services(), f"onward_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(services.postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    brokers = ", ".join(f'"{address}"' for address in services.kafka)
    try:
        yield {
            "mode": "distributed",
            "kafka.bootstrap_servers": f"[{brokers}]",
            "kafka.prefix": f"{name}.",
            "kafka.session_timeout_s": "3.0",
            "postgres.url": urlunsplit(urlsplit(services.postgres)._replace(path=f"/{name}")),
            "redis.url": services.redis,
            "redis.prefix": f"{name}:",
        }
    finally:
        with psycopg.connect(services.postgres, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
