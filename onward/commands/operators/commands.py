"""`onward alarms` and `onward alerts`, as the command line has them."""

from typing import Annotated

from cyclopts import App, Parameter

from onward.commands.options import DEFAULT_DIRECTORY, AsJson, Directory, Key, Set, overrides_of

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
    alarm: str, directory: Directory = DEFAULT_DIRECTORY, *, note: str | None = None, key: Key = None
) -> None:
    """Acknowledge an alarm, so that the releases it holds go on."""
    from onward.commands.operators.alarms import acknowledge

    acknowledge(directory, alarm, note, key)
