"""Rollbacks to versions of the last hour: how many can be gone back to, and how long each takes.

    python -m bench any_version [--minutes 60] [--rate 12] [--orders 40]

A real service, its learner and simulated users, for so long. When the users are gone, rollbacks are ordered one by one:
to the first version, to the newest thirty, to the one that answered most of the best turns so far, and to `--orders`
more that are drawn from the others of the last thousand. So of all thousand a sample is tried, and only where a
thousand have served by then.
Seconds are from the order until the version is live, as its answer says."""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import track

from bench.table import Row, report

NEWEST, LAST, HOUR = 30, 1000, 60
AT_ONCE_S = 1.0
ORDER_TIMEOUT_S = 600


@dataclass(frozen=True)
class Order:
    version: int
    servable: str
    """`now`, `rebuild` or why not, as said before the order."""
    took_s: float | None
    """None: it failed."""


class Service:
    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, body: object = None) -> Any:
        """Send a request, a POST where there is a body. Raises HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=ORDER_TIMEOUT_S) as answer:
            return json.load(answer)


@contextmanager
def served(directory: Path) -> Iterator[Service]:
    address = directory / "service.json"
    command = [sys.executable, "-m", "onward", "run", str(directory), "--port", "0"]
    with (directory / "out.txt").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        while not address.exists():
            if process.poll() is not None:
                raise SystemExit((directory / "out.txt").read_text()[-2000:])
            time.sleep(0.2)
        yield Service(json.loads(address.read_text())["urls"][0])
    finally:
        process.terminate()
        process.wait()


def order(service: Service, version: int) -> Order:
    said = service.ask(f"/v1/policies/{version}/rollback")
    began_s = time.monotonic()
    try:
        service.ask(f"/v1/policies/{version}/rollback", {"why": "measured"})
    except urllib.error.HTTPError as error:
        print(f"version {version}: {error.read().decode()[:300]}", file=sys.stderr)
        return Order(version, said["servable"], None)
    return Order(version, said["servable"], time.monotonic() - began_s)


def policies(service: Service) -> list[int]:
    """Return the versions that served of the newest, the newest first, and the first of all."""
    found = service.ask("/v1/policies?limit=1000")["data"]
    return [*(each["version"] for each in found if each["state"] in ("retired", "live") and each["version"] != 1), 1]


def best_of(service: Service) -> int | None:
    """Return the version that answered most of the best turns so far; None while there are too few to say."""
    lately = service.ask("/v1/improvement")["lately"]
    found: int | None = lately["best"]["version"] if "best" in lately else None
    return found


@dataclass(frozen=True)
class Tried:
    near: Sequence[Order]
    """The newest and the first."""
    best: Order | None
    far: Sequence[Order]
    """Those drawn."""
    others: int
    """The versions that these were drawn from."""


def rows(tried: Tried, versions: int, minutes: float) -> Iterator[Row]:
    share = versions / LAST
    wanted = f"{LAST:,} wanted, in {HOUR:g} minutes"
    yield Row.at_least(f"versions that served in {minutes:g} minutes", versions, "versions", wanted, share, 1.0)
    drawn = f"{len(tried.far)} drawn of {tried.others} others"
    for name, orders in ((f"the first and the newest {NEWEST}", tried.near), (drawn, tried.far)):
        took_s = sorted(each.took_s for each in orders if each.took_s is not None)
        done = len(took_s) / len(orders)
        yield Row.at_least(f"{name}: gone back to", done, "share", f"all {len(orders)} tried", done, 1.0)
        if took_s:
            yield Row(f"{name}: median", statistics.median(took_s), "s")
            longest = Row(f"{name}: the longest", took_s[-1], "s")
            at_once = Row.at_most(longest.metric, took_s[-1], "s", "at once", took_s[-1], AT_ONCE_S)
            yield at_once if orders is tried.near else longest
    made = [each.took_s for each in tried.far if each.servable == "rebuild" and each.took_s is not None]
    yield Row("of those drawn, made again", len(made) / len(tried.far), "share")
    best_s = None if tried.best is None else tried.best.took_s
    yield Row("the best so far: gone back to", best_s, "s", "done", goal=1.0, holds=best_s is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=12)
    parser.add_argument("--orders", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onward-any-version-") as folder:
        directory = Path(folder) / "service"
        directory.mkdir()
        with served(directory) as service:
            users = [sys.executable, "-m", "simulator", "--url", service.url, "--output", str(Path(folder) / "users")]
            users += ["--seconds", str(60 * options.minutes), "--rate", str(options.rate), "--seed", "0"]
            subprocess.run(users, stdout=subprocess.DEVNULL, check=False)  # ends with 1 where the model did not learn
            found = policies(service)
            best = best_of(service)  # before others serve again
            others = found[NEWEST + 1 : LAST]
            drawn = random.Random(0).sample(others, min(options.orders, len(others)))
            near = [order(service, each) for each in track([*found[1 : NEWEST + 1], 1], "the newest and the first")]
            its = None if best is None else order(service, best)
            far = [order(service, each) for each in track(drawn, "drawn")]
    report("any_version", list(rows(Tried(near, its, far, len(others)), len(found), options.minutes)))


if __name__ == "__main__":
    main()
