"""The command line of simulated users against a running service: `python -m simulator --url http://127.0.0.1:8700`."""

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path

import aiohttp
import uvloop

from core.provenance import Origin, made_by
from simulator.drive import Driver, RunOptions
from simulator.exploits import EXPLOITS, exploit_of
from simulator.outcome.curves import RunCurves
from simulator.report import make_report, succeeded, summary, write
from simulator.service import ServiceView
from simulator.users.crowd import LIARS_SHARE, SPAMMERS_SHARE, CrowdOptions
from simulator.view import RunView


async def simulate(traffic: RunOptions, key: str | None, output: Path, made: Origin) -> bool:
    """Run the traffic, write its report, and return whether nothing was lost and true quality rose.

    `made`: by which command, for the report."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
        driver, service, curves = Driver(traffic, http), ServiceView(traffic.base_urls[0], http), RunCurves()
        watching = asyncio.create_task(RunView(driver, service, curves).watch())
        try:
            await driver.run()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        report = await make_report(driver, service, made)
    write(report, curves.settled(driver.truth), output)
    print(summary(report, output), flush=True)
    return succeeded(report)


def main() -> None:
    os.umask(0o077)  # what users said and thought of it is nobody else's
    parser = argparse.ArgumentParser(
        prog="simulator",
        description="Simulated IDE users against a running service. SIMULATOR_KEY: where one is needed, an API key "
        "with the scopes chat, feedback and read.",
    )
    parser.add_argument(
        "--url", required=True, action="append", help="the service's address; repeat it for each replica"
    )
    parser.add_argument("--seconds", type=float, default=150.0, help="how long users arrive")
    parser.add_argument("--rate", type=float, default=20.0, help="sessions per second, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shift-at", type=float, default=None, help="second at which the team's taste changes")
    parser.add_argument("--output", type=Path, default=Path("demo"), help="where the report goes")
    parser.add_argument("--command", help="the command that this is part of, for the report")
    _add_hacking(parser)
    options = parser.parse_args()
    try:
        crowd = CrowdOptions(options.liars, options.lie, options.spammers, options.spam, options.users)
        exploit = exploit_of(options.exploit)
    except ValueError as error:
        parser.error(str(error))
    urls = tuple(options.url)
    traffic = RunOptions(urls, options.seconds, options.rate, options.seed, options.shift_at, crowd, exploit)
    made = made_by("python -m simulator")
    made |= {"command": options.command} if options.command else {}
    sys.exit(0 if uvloop.run(simulate(traffic, os.environ.get("SIMULATOR_KEY"), options.output, made)) else 1)


def _add_hacking(parser: argparse.ArgumentParser) -> None:
    """Add the options for users and clients that mislead the service (docs/exploits.md)."""
    group = parser.add_argument_group("hacking")
    group.add_argument(
        "--liars", type=float, nargs="?", const=LIARS_SHARE, default=0.0, help="share of users who lie together"
    )
    group.add_argument(
        "--lie", choices=["invert", "style"], default="invert", help="report the contrary, or favour a wrong style"
    )
    group.add_argument(
        "--spammers",
        type=float,
        nargs="?",
        const=SPAMMERS_SHARE,
        default=0.0,
        help="share of users who send feedback in bulk",
    )
    group.add_argument(
        "--spam", choices=["random", "same"], default="random", help="random feedback, or always the same"
    )
    group.add_argument("--users", type=int, default=100, help="number of users, where not all are honest")
    group.add_argument("--exploit", help=f"a flaw of the client: {', '.join(EXPLOITS)}")


if __name__ == "__main__":
    main()
