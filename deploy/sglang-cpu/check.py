"""check.py PYTHON MODEL: start the installed SGLang on a model, have a text scored, stop it. Ends with 1 and the
server's log when that fails."""

import sys
import tempfile
import time
from pathlib import Path

from core.errors import OnwardError
from core.ids import ANCHOR
from core.settings import SglangSettings
from serving.sglang.admin import Admin
from serving.sglang.process import EngineProcess


def main(python: Path, model: Path) -> None:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        process = EngineProcess(SglangSettings(python=python), Path(directory) / "sglang.log")
        admin = Admin(process.url, None, 30.0)
        try:
            process.start(model, ANCHOR)
            while not process.is_ready(admin.answers):
                time.sleep(0.1)
            logprobs = admin.score([[1, 2, 3]])[0]
            took_s = time.monotonic() - began_s
            print(f"SGLang {admin.info().sglang} serves {model} after {took_s:.0f} s: {logprobs}")
        except OnwardError as error:
            sys.exit(f"{error}\n{process.log_tail()}")
        finally:
            process.stop()
            admin.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
