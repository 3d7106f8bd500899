"""A check that SGLang scores a text: `check.py SERVER [MODEL]`.

SERVER is the URL of a running server, or the Python of an installed one, which is started on MODEL and stopped again.
The exit status is 1 on failure, and what the server said is printed."""

import sys
import tempfile
import time
from pathlib import Path

from core.errors import OnwardError
from core.ids import ANCHOR
from core.settings import SglangSettings
from serving.engines.sglang.admin import Admin
from serving.engines.sglang.process import EngineProcess


def check(admin: Admin) -> None:
    print(f"SGLang {admin.info().sglang} scores: {admin.score([[1, 2, 3]])[0]}")


def check_installed(python: Path, model: Path) -> None:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        process = EngineProcess(SglangSettings(python=python), Path(directory) / "sglang.log")
        admin = Admin(process.url, None, 30.0)
        try:
            process.start(model, ANCHOR)
            while not process.is_ready(admin.answers):
                time.sleep(0.1)
            print(f"it serves {model} after {time.monotonic() - began_s:.0f} s")
            check(admin)
        except OnwardError as error:
            sys.exit(f"{error}\n{process.log_tail()}")
        finally:
            process.stop()
            admin.close()


if __name__ == "__main__":
    if sys.argv[1].startswith("http"):
        check(Admin(sys.argv[1], None, 30.0))
    else:
        check_installed(Path(sys.argv[1]), Path(sys.argv[2]))
