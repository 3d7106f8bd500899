"""`onward alarms`, `onward alerts` and the orders on versions, as the command line has them."""

from collections.abc import Callable, Mapping
from typing import Annotated, Final

from cyclopts import App, Parameter

from onward.commands.options import (
    DEFAULT_DIRECTORY,
    AsJson,
    Directory,
    Key,
    OrderedVersion,
    Set,
    Why,
    overrides_of,
)

ORDERS: Final[Mapping[str, str]] = {
    "rollback": "Serve an earlier version again, made again first if need be; the learner goes on from it.",
    "promote": "Serve a canary or a candidate now, to everybody.",
    "hold": "Keep a candidate or canary as it is until it is promoted, rolled back or unheld.",
    "unhold": "Let a held version go on.",
    "pin": "Serve this version and release nothing else until it is unpinned.",
    "unpin": "Let versions be released again after a pin.",
}
"""What an operator can order of a version, and what it means."""


def order(kind: str, meaning: str) -> Callable[..., None]:
    """Return the command that gives an order."""

    def give(
        version: OrderedVersion,
        directory: Directory = DEFAULT_DIRECTORY,
        *,
        why: Why = "operator's decision",
        key: Key = None,
    ) -> None:
        from onward.commands.client import give_order

        give_order(directory, kind, version, why, key)

    give.__doc__ = meaning
    return give


def exclude(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    user: Annotated[
        list[str] | None, Parameter(help="Only turns of this user, by the hash that the console and exports show.")
    ] = None,
    turn: Annotated[list[str] | None, Parameter(help="Only this turn, by its id; of several, any.")] = None,
    from_: Annotated[
        str | None, Parameter(name="--from", help="Only turns that began at or after this time: 2026-11-21T15:00:00Z.")
    ] = None,
    to: Annotated[str | None, Parameter(name="--to", help="Only turns that began before this time.")] = None,
    version: Annotated[int | None, Parameter(help="Only turns that this version was made from.")] = None,
    namespace: Annotated[str | None, Parameter(help="Only turns of this namespace.")] = None,
    why: Why = "operator's decision",
    yes: Annotated[bool, Parameter(negative="", help="Do it; without it, only show what would change.")] = False,
    json_: AsJson = False,
    set_: Set = None,
) -> None:
    """Exclude turns from learning, and learn again without them from before their first use.

    A turn is excluded if it meets all of the options. Without --yes it shows what would change, and changes nothing."""
    from onward.commands.operators.exclusions import exclude as order_exclusion

    wished = {"user": user, "turn": turn, "from": from_, "to": to, "version": version, "namespace": namespace}
    order_exclusion(directory, overrides_of(set_), wished, why, do_it=yes, as_json=json_)


alerts = App(name="alerts", help="Try the targets that are told of alarms.")


@alerts.command(name="test")
def try_targets(directory: Directory = DEFAULT_DIRECTORY, *, set_: Set = None) -> None:
    """Send each target of `[alerts]` a test alarm, and that it is over; print which targets took it."""
    from onward.commands.operators.alerts import tell_of_a_test

    tell_of_a_test(directory, overrides_of(set_))


alarms = App(name="alarms", help="Show and acknowledge alarms, which monitors raise.")


@alarms.default
def list_alarms(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Show closed alarms, too.")] = False,
    key: Key = None,
    json_: AsJson = False,
) -> None:
    """List the alarms of the running service, the newest first: what they mean, what they hold."""
    from onward.commands.operators.alarms import show_alarms

    show_alarms(directory, key, everything=all_, as_json=json_)


@alarms.command(name="ack")
def acknowledge_alarm(
    alarm: Annotated[str, Parameter(help="The alarm's id, as `onward alarms` lists it.")],
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    note: Annotated[str | None, Parameter(help="What was found or done, kept with the acknowledgement.")] = None,
    key: Key = None,
) -> None:
    """Acknowledge an alarm, so that the releases it holds go on."""
    from onward.commands.operators.alarms import acknowledge

    acknowledge(directory, alarm, note, key)


@alarms.command(name="unack")
def unacknowledge_alarm(
    alarm: Annotated[str, Parameter(help="The alarm's id, as `onward alarms` lists it.")],
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    key: Key = None,
) -> None:
    """Take an alarm's acknowledgement back, so that it holds again what it held."""
    from onward.commands.operators.alarms import unacknowledge

    unacknowledge(directory, alarm, key)
