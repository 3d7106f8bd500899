"""The commands `onward keys`, as the command line has them. What they need is imported when they run."""

from typing import Annotated

from cyclopts import App, Parameter

from onward.commands.options import DEFAULT_DIRECTORY, AsJson, Directory, Set, overrides_of

KeyId = Annotated[str, Parameter(help="The key's id, as `onward keys list` shows it.")]

keys = App(name="keys", help="API keys: made, rotated and revoked while the service runs.")


@keys.command(name="create")
def create_key(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    namespace: Annotated[str, Parameter(help="The tenant it belongs to.")],
    name: Annotated[str, Parameter(help="Under which its orders are recorded, and what it makes is its own.")],
    scope: Annotated[
        list[str] | None, Parameter(negative="", help="What it may do; without it, chat and feedback.")
    ] = None,
    user: Annotated[str | None, Parameter(help="The only user it speaks for.")] = None,
    requests_per_minute: Annotated[float | None, Parameter(help="Most requests in a minute.")] = None,
    burst: Annotated[int | None, Parameter(help="How many of them at once.")] = None,
    expires: Annotated[str | None, Parameter(help="When it ends: 2027-01-01T00:00:00Z.")] = None,
    set_: Set = None,
) -> None:
    """Make a key and print it, this once. Running services know it within a second or two."""
    from onward.commands.accounts.keys import create

    wished = {"namespace": namespace, "name": name, "user": user, "expires_at": expires, "burst": burst}
    limits = {"requests_per_minute": requests_per_minute, "scopes": scope or ["chat", "feedback"]}
    create(directory, overrides_of(set_), {**wished, **limits})


@keys.command(name="list")
def list_keys(directory: Directory = DEFAULT_DIRECTORY, *, json_: AsJson = False, set_: Set = None) -> None:
    """List the keys of the store: whose, what they may do, until when, and in which hour each was last used."""
    from onward.commands.accounts.keys import show

    show(directory, overrides_of(set_), as_json=json_)


@keys.command(name="revoke")
def revoke_key(key_id: KeyId, directory: Directory = DEFAULT_DIRECTORY, *, set_: Set = None) -> None:
    """End a key, by its id in the list: within a second or two no running service takes it any more."""
    from onward.commands.accounts.keys import revoke

    revoke(directory, overrides_of(set_), key_id)


@keys.command(name="rotate")
def rotate_key(
    key_id: KeyId,
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    overlap_s: Annotated[float, Parameter(help="How long the key before it goes on working.")] = 86400.0,
    set_: Set = None,
) -> None:
    """Make a key with the rights of another and print it, this once; the other one ends after the overlap."""
    from onward.commands.accounts.keys import rotate

    rotate(directory, overrides_of(set_), key_id, overlap_s)


@keys.command(name="hash")
def print_hash() -> None:
    """Read a key from standard input, and print what `api.keys` takes as its `hash`."""
    from onward.commands.accounts.keys import hash_key

    hash_key()
