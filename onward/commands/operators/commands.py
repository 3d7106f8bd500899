"""`onward alerts`, as the command line has it."""

from cyclopts import App

from onward.commands.options import DEFAULT_DIRECTORY, Directory, Set, overrides_of

alerts = App(name="alerts", help="Try the targets that are told of alarms.")


@alerts.command(name="test")
def try_targets(directory: Directory = DEFAULT_DIRECTORY, *, set_: Set = None) -> None:
    """Send each target of `[alerts]` a test alarm, and that it is over; print which targets took it."""
    from onward.commands.operators.alerts import tell_of_a_test

    tell_of_a_test(directory, overrides_of(set_))
