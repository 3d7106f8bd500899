"""Kafka's clients: their configuration, their making, and the meaning of their errors to Onward."""

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeVar

from kafka.errors import (
    AuthorizationError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedVersionError,
)
from kafka.net import KafkaNetSocket
from kafka.net.compat import KafkaNetClient

from core.errors import LogError, LogUnavailable
from core.events import Topic
from core.settings import KafkaSettings

T = TypeVar("T")
_CONNECT_S: Final = 1.0
_SCHEME: Final = "onward-direct"
_REFUSALS = (AuthorizationError, SaslAuthenticationFailedError, KafkaConfigurationError, UnsupportedVersionError)


class _Direct(KafkaNetSocket):  # type: ignore[misc]
    """Connections without a proxy, whose sockets are closed at once.

    kafka-python leaves the sockets of failed connections to the garbage collector: an outage would use up all file
    descriptors first."""

    SCHEMES = (_SCHEME,)

    async def sock_connect(self, net: Any, sock: socket.socket, sockaddr: Any, timeout_at: float | None = None) -> Any:
        with ExitStack() as undo:
            undo.callback(sock.close)
            connected = await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
            undo.pop_all()
        return connected


def topic_name(settings: KafkaSettings, topic: Topic) -> str:
    return settings.prefix + topic.value


def options(settings: KafkaSettings, timeout_s: float) -> dict[str, Any]:
    """Return the options of every client. Requests take at most `timeout_s`."""
    return {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "client_id": "onward",
        "security_protocol": settings.security.protocol,
        "sasl_mechanism": settings.security.sasl_mechanism,
        "sasl_plain_username": settings.security.sasl_username,
        "sasl_plain_password": settings.security.sasl_password,
        "ssl_check_hostname": settings.security.ssl_check_hostname,
        "ssl_cafile": None if settings.security.ssl_cafile is None else str(settings.security.ssl_cafile),
        "ssl_certfile": None if settings.security.ssl_certfile is None else str(settings.security.ssl_certfile),
        "ssl_keyfile": None if settings.security.ssl_keyfile is None else str(settings.security.ssl_keyfile),
        "request_timeout_ms": int(1000 * timeout_s),
        "bootstrap_timeout_ms": int(1000 * timeout_s),
        "reconnect_backoff_max_ms": 1000,  # a broker that restarts is met soon after
        "metadata_max_age_ms": 30_000,
        "proxy_url": f"{_SCHEME}://",
    }


def connected(settings: KafkaSettings, make: Callable[..., T], **more: Any) -> T:
    """Return `make(**more)` once a broker accepts connections. Raises LogUnavailable and LogError.

    kafka-python's constructors wait for a broker and, when none answers, leave a thread and sockets behind: so brokers
    are looked for first, and a half-made client is closed."""
    reach_any(settings)
    begun: list[KafkaNetClient] = []

    def client(**configuration: Any) -> KafkaNetClient:
        begun.append(KafkaNetClient(**configuration))
        return begun[-1]

    with explained(), _listening() as said:
        try:
            return make(**more, kafka_client=client)
        except KafkaError as error:
            for one in begun:
                one.close()
            if isinstance(error, KafkaTimeoutError):
                raise _why_not(settings, said) from error
            raise


def _why_not(settings: KafkaSettings, said: Sequence[str]) -> LogError | LogUnavailable:
    """Say why a broker that accepts connections does not answer."""
    refusals = [reason for reason in said if "Sasl" in reason or "SSL" in reason]
    if refusals:
        return LogError(f"Kafka refuses: {refusals[-1]}")
    servers = ", ".join(settings.bootstrap_servers)
    reason = said[-1] if said else "silence"
    return LogUnavailable(f"Kafka at {servers} does not answer over {settings.security.protocol}: {reason}")


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Collect why a client could not connect: kafka-python tells only its log."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if str(record.msg).startswith("Bootstrap connection to") and isinstance(record.args, tuple):
                said.append(str(record.args[1]))

    ear = Ear(logging.WARNING)
    speaker = logging.getLogger("kafka.net.manager")
    speaker.addHandler(ear)
    try:
        yield said
    finally:
        speaker.removeHandler(ear)


def reach_any(settings: KafkaSettings) -> None:
    """Connect to any broker. Raises LogUnavailable saying why none accepts a connection."""
    reasons = []
    for server in settings.bootstrap_servers:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except OSError as error:
            reasons.append(f"{server}: {error}")
        else:
            return
    raise LogUnavailable(f"no Kafka broker answers: {'; '.join(reasons)}")


@contextmanager
def explained() -> Iterator[None]:
    """Translate Kafka's errors: LogError when trying again is useless, else LogUnavailable."""
    try:
        yield
    except _REFUSALS as error:
        raise LogError(f"Kafka refuses: {error}") from error
    except KafkaError as error:
        raise LogUnavailable(f"Kafka: {error}") from error
