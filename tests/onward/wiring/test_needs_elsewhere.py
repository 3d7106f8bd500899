"""What one cluster's release controller keeps for the others, and what the settings refuse to share."""

from contextlib import closing
from pathlib import Path

import made_events
import pytest

from core.blobs import FsspecBlobs
from core.errors import ConfigError, Unavailable
from core.ids import PolicyName, PolicyRef, Version, base_ref
from core.records.clusters import ClusterStatus
from ingest.clusters.bucket import Bucket
from onward.wiring.foundation import open_foundation
from onward.wiring.log.clusters import needs_elsewhere

ACME = PolicyRef(PolicyName("acme"), Version(4))


def cluster(tmp_path: Path, role: str, **more: str) -> dict[str, str]:
    settings = {"ROLE": role, "URL": str(tmp_path / "bucket")}
    named = {f"ONWARD_CLUSTERS__{name}": value for name, value in settings.items()}
    return {**named, "ONWARD_SERVING__CLUSTER": role, "ONWARD_LEARNER__ENABLED": str(role == "home").lower(), **more}


def needed(tmp_path: Path, given: dict[str, str]) -> set[PolicyRef] | None:
    with closing(open_foundation(tmp_path / "service", given)) as foundation:
        asked = needs_elsewhere(foundation)
        return None if asked is None else set(asked())


def test_home_keeps_what_edges_need_and_an_edge_discards_nothing(tmp_path: Path) -> None:
    bucket = Bucket(FsspecBlobs(tmp_path / "bucket"))
    for name, needs in (("home", (base_ref(9),)), ("east", (base_ref(3), ACME)), ("west", (base_ref(2),))):
        bucket.put_status(
            ClusterStatus(cluster=name, live=needs[0], followed=0, needs=needs, unsent=0, at=made_events.NOW)
        )
    assert needed(tmp_path, cluster(tmp_path, "home")) == {base_ref(2), base_ref(3), ACME}
    assert needed(tmp_path, cluster(tmp_path, "edge")) is None
    assert needed(tmp_path, {}) == set()


def test_while_the_bucket_cannot_be_asked_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(blobs: FsspecBlobs, prefix: str) -> list[str]:
        raise OSError("nothing answers")

    monkeypatch.setattr(FsspecBlobs, "list", away)
    with pytest.raises(Unavailable, match="nothing answers"):
        needed(tmp_path, cluster(tmp_path, "home"))


def test_an_edge_has_an_archive_of_its_own(tmp_path: Path) -> None:
    archive = {"ONWARD_ARCHIVE__ENABLED": "true"}
    with pytest.raises(ConfigError, match=r"archive\.url is missing"):
        open_foundation(tmp_path / "service", cluster(tmp_path, "edge", **archive))
    own = archive | {"ONWARD_ARCHIVE__URL": str(tmp_path / "own")}
    for given in (cluster(tmp_path, "edge", **own), cluster(tmp_path, "home", **archive)):
        open_foundation(tmp_path / "service", given).close()
