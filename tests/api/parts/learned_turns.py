"""Manifests in the words of the learner's, for versions of a console's world."""

from datetime import UTC, datetime, timedelta

import msgspec
import zstandard
from api_harness import Service
from console_world import inference_id
from sqlalchemy import update

from core import codec
from core.ids import base_ref
from core.store.database import tables

START = datetime(2026, 1, 2, tzinfo=UTC)


def learned(
    service: Service, version: int, *numbers: int, namespace: str = "default", said_by: tuple[str, ...] = ()
) -> None:
    """Give a version a manifest, as the learner writes them, of these turns; its update took 0.5 s and 0.5 s."""
    path = f"manifests/{version:08}.msgpack.zst"
    rewards = [
        {
            "inference_id": inference_id(n),
            "namespace": namespace,
            "session_id": "session",
            "workload": "chat",
            "decided_at": START + timedelta(seconds=n),
            "value": 1,
            "said_by": said_by,
        }
        for n in numbers
    ]
    made = codec.encoder().encode({"version": version, "rewards": rewards, "turns": []})
    service.services.blobs.put(path, zstandard.ZstdCompressor().compress(made))
    with service.store.work() as work:
        policy = work.policies.get(base_ref(version))
        assert policy is not None
        changed = codec.encoder().encode(msgspec.structs.replace(policy, manifest=path))
        table = tables.policies
        work.policies._connection.execute(
            update(table).where(table.c.policy == "base", table.c.version == version).values(record=changed)
        )
