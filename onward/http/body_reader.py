"""The process in which the API reads large bodies, one at a time.

`python -m onward.http.body_reader MODEL MOST_TOKENS FAMILY`

It imports what reading takes and nothing else, gives way to everybody else on the machine, and has a bound on memory.
"""

import os
import resource
import signal
import sys
from pathlib import Path

from api.requests.reader import serve_jobs
from core.stages.ending import ignore_signals
from serving.rendering import load_renderer

_NICE = 10
_MOST_MEMORY = 2 << 30


def main() -> None:
    ignore_signals(signal.SIGINT)  # of a terminal: the API ends this process when it has ended its own
    os.nice(_NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY if hard < 0 else min(_MOST_MEMORY, hard), hard))
    model, most_tokens, family = sys.argv[1:]
    serve_jobs(sys.stdin.buffer, sys.stdout.buffer, load_renderer(Path(model), int(most_tokens), family))


if __name__ == "__main__":
    main()
