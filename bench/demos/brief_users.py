"""Users of any model, who accept its answers where these are short, and the directory that `onward init` makes for it.

An answer is short that has at most 0.8 of the median length of the first ones: nobody told the model of that taste."""

import json
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSWER_TOKENS = 48
TEMPERATURE = 0.7
FIRST = 24  # answers whose length says what is short
SHORT = 0.8
NOUNS = ("a list", "a queue", "a hash table", "recursion", "a thread", "a socket", "a cache", "an index", "a lock")
ASKED = ("What is {}?", "When is {} slow?", "Name a use of {}.", "Explain {} to a child.", "What can go wrong with {}?")


@dataclass
class Users:
    """Clients that ask and judge until the time is over, and what they saw."""

    url: str
    model: str
    lengths: list[int] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    reported: int = 0
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, seed: int, until_s: float) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until_s:
            try:
                self._once(chance, seed)
            except (urllib.error.URLError, TimeoutError) as error:
                self.failed.append(str(error))
                time.sleep(1.0)

    def _once(self, chance: random.Random, seed: int) -> None:
        question = chance.choice(ASKED).format(chance.choice(NOUNS))
        answer = self._post(
            "/v1/chat/completions",
            model=self.model,
            messages=[{"role": "user", "content": question}],
            max_tokens=ANSWER_TOKENS,
            temperature=TEMPERATURE,
            user=f"user-{seed}-{chance.randrange(4)}",
        )
        length = len(answer["choices"][0]["message"]["content"])
        with self.lock:
            self.lengths.append(length)
            is_liked = length <= SHORT * statistics.median(self.lengths[:FIRST])
            self.accepted.append(is_liked)
        self._post(
            "/v1/feedback", inference_id=answer["onward"]["inference_id"], metric_name="accepted", value=is_liked
        )
        with self.lock:
            self.reported += 1

    def _post(self, path: str, **body: object) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response)


def made_directory(directory: Path, model: Path, device: str) -> None:
    command = ["-m", "onward", "init", str(directory), "--model", str(model), "--device", device]
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT)
