"""The digests of `deploy/pinned.yml` belong to the images that `docker-compose.yml` and `Dockerfile` name."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
UNKNOWN = {"haproxy:3.2"}


def services_of(name: str) -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((ROOT / name).read_text())["services"])


SERVICES, PINNED = services_of("docker-compose.yml"), services_of("deploy/pinned.yml")


@pytest.mark.parametrize("name", PINNED)
def test_who_writes_another_version_has_to_look_for_its_digest(name: str) -> None:
    if "build" in SERVICES[name]:
        base = re.search(r"^ARG PYTHON=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        assert base is not None
        used, pinned = base[1], PINNED[name]["build"]["args"]["PYTHON"]
    else:
        used, pinned = SERVICES[name]["image"], PINNED[name]["image"]
    image, _, digest = pinned.partition("@")
    assert image == used
    assert re.fullmatch("sha256:[0-9a-f]{64}", digest)


def test_what_is_built_or_pulled_is_pinned() -> None:
    built = {service["image"] for service in SERVICES.values() if "build" in service}
    pulled = {name for name, service in SERVICES.items() if service.get("image") not in built | UNKNOWN}
    assert {name for name, service in SERVICES.items() if "build" in service} | pulled == set(PINNED)
