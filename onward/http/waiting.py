"""The answers at the API's address before there is an API: they say what the start waits for."""

import logging
import socket
from contextlib import ExitStack

from core.errors import Unavailable
from core.secrets import redacted
from core.settings import ApiSettings
from onward.http.metrics_server import waiting_server

logger = logging.getLogger(__name__)


class StartWaiting:
    """Says nothing until the first time that something is away."""

    def __init__(
        self, name: str, settings: ApiSettings, stack: ExitStack, listener: socket.socket | None = None
    ) -> None:
        """Close with `stack` what is opened here. `listener` listens at the address already; None: nobody does."""
        self._name, self._settings, self._stack, self._listener = name, settings, stack, listener
        self._why: str | None = None

    def waits(self, error: Unavailable) -> None:
        logger.warning("%s waits: %s", self._name, error)
        is_first, self._why = self._why is None, redacted(str(error))
        if is_first:
            self._stack.enter_context(waiting_server(self._settings, "start", lambda: str(self._why), self._listener))
