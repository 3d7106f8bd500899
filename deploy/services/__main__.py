"""The command line of the services: `python -m deploy.services up|down|status|fresh|pin [--no-fsync] [DIR]`.

`fresh` makes room for one more service among those that run, and prints its settings; `pin` trusts the jars as
Maven Central gives them now."""

import argparse
import sys
from pathlib import Path

from deploy.services.maven import KAFKA, S3PROXY
from deploy.services.server import ServiceError
from deploy.services.stack import DEFAULT, Stack


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.services")
    parser.add_argument("action", choices=("up", "down", "status", "fresh", "pin"))
    parser.add_argument("directory", type=Path, nargs="?", default=DEFAULT)
    parser.add_argument(
        "--no-fsync", action="store_true", help="let PostgreSQL lose data when the machine stops: for tests only"
    )
    arguments = parser.parse_args()
    stack = Stack(arguments.directory, fsync=not arguments.no_fsync)
    try:
        if arguments.action == "pin":
            for jars in (KAFKA, S3PROXY):
                jars.pin()
        elif arguments.action == "up":
            stack.up()
            print((stack.directory / "services.env").read_text(), end="")
        elif arguments.action == "fresh":
            print(stack.fresh(), end="")
        elif arguments.action == "down":
            stack.down()
        else:
            return _show(stack)
    except ServiceError as error:
        print(f"services: {error}", file=sys.stderr)
        return 1
    return 0


def _show(stack: Stack) -> int:
    for server in stack.servers:
        print(f"{server.name:<10}{f'pid {server.pid}, {server.address}' if server.alive else 'down'}")
    return 0 if stack.alive else 1


if __name__ == "__main__":
    sys.exit(main())
