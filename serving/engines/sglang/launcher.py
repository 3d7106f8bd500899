"""Starts SGLang's server with what its own program cannot do: a hidden admin key and, on a CPU, forks.

SGLang takes the key as an argument alone, writes its arguments into its log and tells them to whoever asks. Here it
comes in an environment variable, which other users cannot read, and stands in no argument list and in no line of a log.

The server is three processes, and SGLang starts two of them as new interpreters, which import all of torch and SGLang
again. Nothing forbids a fork where there is no CUDA, so there the two begin with what the first has imported.

This program is run by SGLang's own interpreter, which has nothing else of ours.
"""

import importlib
import logging
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any, Final

KEY: Final = "ONWARD_ENGINE_ADMIN_KEY"
FORKING: Final = "ONWARD_ENGINE_FORKING"
_HIDDEN: Final = "***"


class MultiprocessingByFork:
    """All of multiprocessing, but for the choice of how processes start: they are forked."""

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)

    def set_start_method(self, *_: Any, **__: Any) -> None:
        multiprocessing.set_start_method("fork", force=True)


def fork_processes() -> None:
    """Let the server's other processes begin with what this one has imported."""
    engine: Any = importlib.import_module("sglang.srt.entrypoints.engine")
    engine.mp = MultiprocessingByFork()


class TorchWithoutPins:
    """Torch, except that no tensor is pinned in memory, which torch refuses without CUDA."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)

    def __init__(self) -> None:
        for name in ("empty", "tensor", "zeros"):
            setattr(self, name, _without_pins(getattr(self, name)))


def _without_pins(make: Any) -> Any:
    return lambda *arguments, pin_memory=False, **options: make(*arguments, **options)


def pin_nothing() -> None:
    """Let SGLang's adapter code, which pins what it copies to a GPU, work without a GPU."""
    importlib.import_module("torch").Tensor.pin_memory = lambda tensor, *_: tensor
    for name in ("lora.layers", "lora.backend.torch_backend"):
        module: Any = importlib.import_module(f"sglang.srt.{name}")
        module.torch = TorchWithoutPins()


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


def main(arguments: list[str], key: str | None) -> None:
    server = importlib.import_module("sglang.launch_server")
    importlib.import_module("sglang.srt.plugins").load_plugins()
    secret = [] if key is None else ["--admin-api-key", key]
    settings = _arguments().prepare_server_args([*arguments, *secret])
    if key is not None:
        settings._launch_command = str(settings.launch_command or "").replace(key, _HIDDEN)
    if FORKING in os.environ:
        fork_processes()
        if settings.enable_lora:
            pin_nothing()
    try:
        server.run_server(settings)
    finally:
        importlib.import_module("sglang.srt.utils").kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]
# The latter name: a process of the server that is no fork, which begins with this file, too.
if __name__ in ("__main__", "__mp_main__") and KEY in os.environ:
    hide(os.environ[KEY])
    hide_from_inquiries()
if __name__ == "__main__":
    main(sys.argv[1:], os.environ.get(KEY))
