"""A certificate and its key, made for a test."""

import subprocess
from pathlib import Path


def made(directory: Path) -> dict[str, str]:
    """Make a certificate for 127.0.0.1 in the directory, and return the settings that name it and its key."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=onward", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return {"certificate": str(certificate), "key": str(key)}
