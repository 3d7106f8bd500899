"""TLS: what the API speaks it with, and how commands on the same machine know that it is the API they speak to."""

import ssl
from pathlib import Path

from core.errors import ConfigError
from core.settings import TlsSettings


def server_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """Return the TLS context, None without TLS.

    Raises ConfigError naming a file that is missing, invalid, or does not match the other."""
    certificate, key = settings.certificate, settings.key
    if certificate is None or key is None:
        return None
    for name, path in (("certificate", certificate), ("key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigError(f"settings: api.tls.{name}: {path}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"settings: api.tls.certificate, api.tls.key: {certificate} and {key} are no PEM certificate and its"
            f" unencrypted key: {error}"
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def client_context(certificate: Path) -> ssl.SSLContext:
    """Trusts this certificate and no other, whatever name the service is called by."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it may be signed by somebody, who is then not asked
    return context
