"""A server of S3's API that this process's own clients reach."""

import pytest
from s3fs import S3FileSystem

from deploy.services.s3 import S3


def point_to(server: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients in this process reach a server; those of one before it are kept by s3fs, and forgotten here."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()
