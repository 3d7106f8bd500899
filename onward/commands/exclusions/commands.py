"""`onward exclude`, `include` and `exclusions`, as the command line has them. A running service does the work."""

from typing import Annotated

from cyclopts import Parameter

from core.errors import ConfigError
from onward.commands.options import DEFAULT_DIRECTORY, Directory, Key

Several = list[str] | None
Why = Annotated[str, Parameter(help="The reason, for the log and whoever asks later.")]


def exclude(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    user: Annotated[
        Several, Parameter(negative="", help="A user's turns: a name, or a hash as the console shows it.")
    ] = None,
    session: Annotated[Several, Parameter(negative="", help="A session's turns.")] = None,
    turn: Annotated[Several, Parameter(negative="", help="A turn, by its id.")] = None,
    api_key: Annotated[Several, Parameter(negative="", help="What a key asked: its name or fingerprint.")] = None,
    workload: Annotated[Several, Parameter(negative="", help="A workload's turns.")] = None,
    answered_by: Annotated[list[int] | None, Parameter(negative="", help="What a version answered.")] = None,
    learned_by: Annotated[
        list[int] | None, Parameter(negative="", help="What a version's update learned from.")
    ] = None,
    since: Annotated[str | None, Parameter(help="From this time on: 2026-11-21T15:00:00Z.")] = None,
    until: Annotated[str | None, Parameter(help="Before this time.")] = None,
    namespace: Annotated[str | None, Parameter(help="Of this namespace, else of the key's own.")] = None,
    preview: Annotated[bool, Parameter(negative="", help="Show what would change, and change nothing.")] = False,
    roll_back: Annotated[
        bool, Parameter(negative="", help="Serve the version before at once, if it has learned from none of it.")
    ] = False,
    why: Annotated[str | None, Parameter(help="The reason, for the log and whoever asks later.")] = None,
    key: Key = None,
) -> None:
    """Exclude turns from learning, and unlearn what was learned from them; the options narrow each other down.

    The learner goes back to the version before their first use and makes the updates since again without them. The
    last of these versions must pass gate and canary, as any other."""
    from onward.commands.exclusions.exclude import exclude_turns, show_preview

    named = {
        "users": user,
        "sessions": session,
        "turns": turn,
        "keys": api_key,
        "workloads": workload,
        "answered_by": answered_by,
        "learned_by": learned_by,
        "since": since,
        "until": until,
        "namespace": namespace,
    }
    body = {name: value for name, value in named.items() if value is not None}
    if preview:
        if roll_back:
            raise ConfigError("--roll-back: not with --preview, which changes nothing and names the version by itself")
        show_preview(directory, body, key)
        return
    if why is None:
        raise ConfigError("--why: say why, or look first with --preview")
    exclude_turns(directory, body, why, key, roll_back=roll_back)


def include(order: int, directory: Directory = DEFAULT_DIRECTORY, *, why: Why, key: Key = None) -> None:
    """Include again what an order excluded, for all that is rewarded from now on."""
    from onward.commands.exclusions.exclude import include_again

    include_again(directory, order, why, key)


def exclusions(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    follow: Annotated[bool, Parameter(negative="", help="Until all are obeyed, with rate and time left.")] = False,
    key: Key = None,
) -> None:
    """List the orders to exclude turns: who gave each, when, why, and how far it is obeyed."""
    from onward.commands.exclusions.exclude import follow_exclusions, show_exclusions

    if follow:
        follow_exclusions(directory, key)
    else:
        show_exclusions(directory, key)
