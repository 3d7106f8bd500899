"""`onward erase`, as the command line has it. A running service does the work."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from core.errors import ConfigError
from onward.commands.options import DEFAULT_DIRECTORY, Directory, Key


def erase(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    user: Annotated[
        str | None, Parameter(help="All that a user said: a name, or a hash as the console shows it.")
    ] = None,
    session: Annotated[str | None, Parameter(help="A session.")] = None,
    namespace: Annotated[str | None, Parameter(help="Of this namespace, else of the key's own.")] = None,
    whole: Annotated[bool, Parameter(negative="", help="All that was said in the namespace.")] = False,
    organisation: Annotated[
        str | None, Parameter(help="An organisation, by its policy: all of its namespaces, and the policy itself.")
    ] = None,
    why: Annotated[str | None, Parameter(help="The reason, for whoever asks later.")] = None,
    preview: Annotated[
        bool, Parameter(negative="", help="Show what would be removed and what it costs; do nothing.")
    ] = False,
    follow: Annotated[
        bool, Parameter(negative="", help="Wait until it is done, and print the signed statement.")
    ] = False,
    verify: Annotated[
        Path | None, Parameter(help="Check the signature of a statement in this file; needs no service.")
    ] = None,
    key: Key = None,
) -> None:
    """Erase what a user said, a session or an organisation from everything that keeps it, and from the weights.

    Without options it lists the orders that were given, with their progress. Ordered again before it is done, it is
    the same order, unless more was said since."""
    from onward.commands.erasures.erase import check_statement, erase_all, show_erasures, show_preview

    if verify is not None:
        check_statement(verify)
        return
    if whole and (namespace is None or user is not None or session is not None):
        raise ConfigError("--whole: with --namespace, and neither --user nor --session")
    if organisation is not None and (whole or (user, session, namespace) != (None, None, None)):
        raise ConfigError("--organisation: alone, since it has namespaces of its own")
    if user is None and session is None and organisation is None and not whole:
        show_erasures(directory, key)
        return
    if user is not None and session is not None:
        raise ConfigError("--user, --session: one of them")
    named = {"user": user, "session": session, "namespace": namespace, "organisation": organisation}
    body = {name: value for name, value in named.items() if value is not None}
    if preview:
        show_preview(directory, body, key)
    else:
        erase_all(directory, body, why, key, follow=follow)
