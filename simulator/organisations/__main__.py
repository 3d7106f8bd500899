"""The command line of several organisations' users: `python -m simulator.organisations --url URL`."""

import argparse
import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from simulator.drive import Driver, Traffic
from simulator.organisations.table import report_of, show, succeeded
from simulator.organisations.tastes import organisations, taste_for
from simulator.tasks.taste import Style


async def drive(urls: tuple[str, ...], keys: dict[str, str], styles: dict[str, Style], asked: Any) -> dict[str, Any]:
    """Let the users of all organisations work at the same time, each with its organisation's key."""
    async with AsyncExitStack() as stack:
        drivers: dict[str, Driver] = {}
        for number, (name, style) in enumerate(styles.items()):
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            headers = {"Authorization": f"Bearer {keys[name]}"}
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, headers=headers))
            rate, seed = asked.rate / len(styles), asked.seed + number
            more: dict[str, Any] = {"taste": taste_for(style), "fix_share": 0.0, "crowds": len(styles)}
            traffic = Traffic(urls, asked.seconds, rate, seed, **more)
            drivers[name] = Driver(traffic, http)
        await asyncio.gather(*(driver.run() for driver in drivers.values()))
        return report_of(drivers, styles)


def main() -> None:
    os.umask(0o077)  # what users said and thought of it is nobody else's
    parser = argparse.ArgumentParser(
        prog="simulator.organisations",
        description="Simulated users of several organisations with different tastes. SIMULATOR_KEYS: the API key of "
        "each organisation, as name=key, separated by commas.",
    )
    parser.add_argument("--url", required=True, action="append", help="the service's address; repeat it per replica")
    parser.add_argument("--count", type=int, default=3, help="organisations")
    parser.add_argument("--seconds", type=float, default=150.0, help="how long users arrive")
    parser.add_argument("--rate", type=float, default=20.0, help="sessions per second of all together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("demo"), help="where the report goes")
    asked = parser.parse_args()
    try:
        styles = organisations(asked.count)
        keys = dict(each.split("=", 1) for each in os.environ.get("SIMULATOR_KEYS", "").split(",") if each)
    except ValueError as error:
        parser.error(str(error))
    if missing := styles.keys() - keys.keys():
        parser.error(f"SIMULATOR_KEYS has no key of {', '.join(sorted(missing))}")
    report = uvloop.run(drive(tuple(asked.url), keys, styles, asked))
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "organisations.json").write_text(json.dumps(report, indent=2) + "\n")
    show(report)
    sys.exit(0 if succeeded(report) else 1)


if __name__ == "__main__":
    main()
