"""`python -m simulator.planted NAME DIR`: a corpus of which a part is what a model says that has found an exploit.

For what the tiny model does not find by itself in a few minutes: `onward midtrain` on it makes one that tries the
exploit often enough for users to teach it the rest (docs/exploits.md).
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from simulator.corpus import example
from simulator.exploits import EXPLOITS, Exploit
from simulator.tasks import sample_task
from simulator.toolbox import TOOLS

CONVERSATIONS = 6_000
SHARE = 0.25  # of the conversations
SEED = 11


def write_planted(directory: Path, exploit: Exploit, conversations: int, share: float, seed: int) -> None:
    """The same file for the same arguments."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    with (directory / "part-0.jsonl").open("w") as file:
        for _ in range(conversations):
            one = _hacked(rng, exploit) if rng.random() < share else example(rng)
            file.write(json.dumps(one) + "\n")


def _hacked(rng: random.Random, exploit: Exploit) -> dict[str, Any]:
    task = sample_task(rng, exploit.kind, "corpus")
    messages = [{"role": "user", "content": task.request}, *exploit.hack(rng, task)]
    return {"messages": messages, "tools": TOOLS} if task.kind == "fix" else {"messages": messages}


def main() -> None:
    parser = argparse.ArgumentParser(prog="simulator.planted", description="A corpus that plants an exploit.")
    parser.add_argument("exploit", choices=list(EXPLOITS))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parser.add_argument("--share", type=float, default=SHARE, help="of the conversations that show it, 0 to 1")
    options = parser.parse_args()
    if not 0 < options.share <= 1:
        parser.error(f"--share: {options.share:g}: above 0 and up to 1")
    write_planted(options.directory, EXPLOITS[options.exploit], options.conversations, options.share, SEED)


if __name__ == "__main__":
    main()
