"""Privacy of what this program writes: files are its user's alone, log lines hold no secrets and no text of users."""

import logging
import os
import stat
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from core.errors import ConfigError, OnwardError
from core.secrets import redacted
from core.stages.start_steps import clear_line

UMASK = 0o077
"""Files 0600, folders 0700: of this process and of all that it starts."""
_FOLDER = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
logger = logging.getLogger(__name__)


def keep_private() -> None:
    """Set the process up so; call this first."""
    os.umask(UMASK)
    handler = _OnLinesOfTheirOwn(sys.stderr)
    handler.setFormatter(_Formatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    sys.excepthook = _end_of_process
    threading.excepthook = _end_of_thread


class _OnLinesOfTheirOwn(logging.StreamHandler[TextIO]):
    """Writes records below each other, and not behind the line of a start that is rewritten."""

    def emit(self, record: logging.LogRecord) -> None:
        clear_line()
        super().emit(record)


def _end_of_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        logger.critical("an unexpected error ended the process", exc_info=(kind, error, trace))


def _end_of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and ended.exc_type is not SystemExit:
        name = "?" if ended.thread is None else ended.thread.name
        told = (ended.exc_type, ended.exc_value, ended.exc_traceback)
        logger.critical("an unexpected error ended thread %s", name, exc_info=told)


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may enter.

    An existing one that others may enter is closed to them; when that is not permitted, a warning says so: files in it
    may be old enough to be readable for them, too."""
    path.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    before = path.stat().st_mode
    if not before & _OTHERS:
        return
    try:
        path.chmod(_FOLDER)
    except OSError as error:
        logger.warning("%s: others may enter it (mode %o): %s", path, stat.S_IMODE(before), error.strerror)


def own_folder(path: Path) -> None:
    """Make a folder that only this user may enter, where others may write beside it.

    Raises ConfigError where the name is taken by another's folder, by one that others may enter, or by a link."""
    with suppress(FileExistsError):
        path.mkdir(mode=_FOLDER)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise ConfigError(f"{path}: is not a folder of this user's alone, which the service needs there: move it away")


class _Formatter(logging.Formatter):
    """A log formatter that leaves out secrets.

    Of foreign errors it gives the type and the place, not the message, which may quote anything, a prompt too."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        told: list[str] = []
        error = ei[1]
        while error is not None:
            said = f": {error}" if isinstance(error, OnwardError | OSError) else ""
            told.append("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__ + said)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n\nthen:\n".join(reversed(told))
