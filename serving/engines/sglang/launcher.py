"""Starts SGLang's server with an admin key that stands in no argument list and in no line of its log.

SGLang takes the key as an argument alone, writes its arguments into its log and tells them to whoever asks. This
program is run by SGLang's own interpreter, which has nothing else of ours: the key comes in an environment variable,
which other users cannot read.
"""

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

KEY: Final = "ONWARD_ENGINE_ADMIN_KEY"
_HIDDEN: Final = "***"


def hide(key: str) -> None:
    """Hide a key in all log records of this process from now on."""
    make = logging.getLogRecordFactory()

    def record_without_key(*arguments: Any, **fields: Any) -> logging.LogRecord:
        record = make(*arguments, **fields)
        if key in (message := record.getMessage()):
            record.msg, record.args = message.replace(key, _HIDDEN), ()
        return record

    logging.setLogRecordFactory(record_without_key)


def hide_from_inquiries() -> None:
    """Hide the key in the arguments that each process of the server tells."""
    kind = _arguments().ServerArgs
    tell = kind.resolved_dict
    kind.resolved_dict = lambda settings: {**tell(settings), "admin_api_key": _HIDDEN}


def _arguments() -> Any:
    return importlib.import_module("sglang.srt.server_args")


def main(arguments: list[str], key: str) -> None:
    server = importlib.import_module("sglang.launch_server")
    importlib.import_module("sglang.srt.plugins").load_plugins()
    settings = _arguments().prepare_server_args([*arguments, "--admin-api-key", key])
    settings._launch_command = str(settings.launch_command or "").replace(key, _HIDDEN)
    try:
        server.run_server(settings)
    finally:
        importlib.import_module("sglang.srt.utils").kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]
if __name__ in ("__main__", "__mp_main__"):  # the latter: a process of the server, which begins with this file, too
    hide(os.environ[KEY])
    hide_from_inquiries()
if __name__ == "__main__":
    main(sys.argv[1:], os.environ[KEY])
