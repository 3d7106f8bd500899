"""The time until the console shows the newest rewards, as the store grows.

    make services browser && python -m bench console [LARGEST]

`onward api` as a process of its own over Kafka, Redis and a database per size, each ten times the one before, from a
thousand sessions of three turns to LARGEST (a million); headless Chromium, in which each load has a fresh tab. Sizes
take turns."""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from bench.services import migrated_database, running, settle, store_on, topics, wait_for
from bench.store.full_store import fill
from bench.table import Row, report
from core.settings import KafkaSettings, PostgresSettings
from deploy import browser as chromium

SMALLEST = 1000
LARGEST = 1_000_000
VERSIONS = 500
ROUNDS = 15
PARTITIONS = 4
GOAL_MS = 1000.0


@contextmanager
def served(sessions: int) -> Iterator[str]:
    """Yield the address of an API over a store of so many sessions."""
    with ExitStack() as stack:
        kafka = stack.enter_context(topics(PARTITIONS))
        postgres = stack.enter_context(migrated_database())
        with store_on(postgres) as store, store.begin() as connection:
            fill(connection, sessions, VERSIONS)
        settle(postgres)
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="onward-console-"))
        yield stack.enter_context(api(Path(directory), kafka, postgres))


@contextmanager
def api(directory: Path, kafka: KafkaSettings, postgres: PostgresSettings) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    settings = {
        "MODE": "distributed",
        "KAFKA__BOOTSTRAP_SERVERS": f'["{kafka.bootstrap_servers[0]}"]',
        "KAFKA__PREFIX": kafka.prefix,
        "POSTGRES__URL": postgres.url,
        "REDIS__URL": running().redis.url,
        "API__PORT": str(port),
        "SERVING__ENGINE": "sglang",
        "SERVING__SGLANG__REPLICAS": "0",
    }
    environment = os.environ | {f"ONWARD_{name}": value for name, value in settings.items()}
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "onward", "api", str(directory)], env=environment)
    try:
        wait_for(lambda: _answers(url) or process.poll() is not None, 0.1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/v1/rewards?limit=1", timeout=5).close()
    except urllib.error.URLError:
        return False
    return True


def load_ms(browser: Browser, url: str) -> float:
    """Measure from the request to the newest rewards on the page."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector(".reward")
        return float(page.evaluate("performance.now()"))
    finally:
        context.close()


def measure(browser: Browser, urls: list[str]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in urls]
    for number in range(ROUNDS + 1):
        for which, url in enumerate(urls):
            took = load_ms(browser, url)
            if number:  # the first one starts what all others find started
                times[which].append(took)
    return times


def rows(sizes: list[int], times: list[list[float]]) -> Iterator[Row]:
    floor = statistics.median(times[0])
    for size, taken in zip(sizes, times, strict=True):
        median = statistics.median(taken)
        against = f"{sizes[0]:,} sessions"
        yield Row(f"console, median at {size:,}", median, "ms", against, median / floor, None, median < GOAL_MS)
        yield Row(f"console, slowest of {ROUNDS} at {size:,}", max(taken), "ms", holds=max(taken) < GOAL_MS)


def main() -> None:
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else LARGEST
    sizes = [SMALLEST]
    while sizes[-1] * 10 <= largest:
        sizes.append(sizes[-1] * 10)
    program = chromium.find()
    if program is None:
        raise SystemExit("needs Chromium: run `make browser`")
    with ExitStack() as stack:
        urls = [stack.enter_context(served(size)) for size in sizes]
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        stack.callback(browser.close)
        report("console", list(rows(sizes, measure(browser, urls))))


if __name__ == "__main__":
    main()
