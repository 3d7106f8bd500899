"""A service over real SGLang servers, without a learner: versions come from the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service_tree import Service
from sglang_server import PYTHON, require_sglang

SETTINGS = {"serving.engine": "sglang", "serving.sglang.python": str(PYTHON), "learner.enabled": "false"}


@contextmanager
def sglang_service(directory: Path, settings: dict[str, Any], admin_key: str | None = None) -> Iterator[Service]:
    """Yield a service that is ready."""
    require_sglang()
    directory = directory / "service"
    directory.mkdir()
    if admin_key is not None:
        (directory / "onward.toml").write_text(f'[serving.sglang]\nadmin_key = "{admin_key}"\n')
    made = Service(directory, SETTINGS | settings)
    try:
        yield made.start()
    finally:
        made.stop()
