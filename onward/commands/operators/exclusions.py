"""`onward exclude`: what an exclusion changes, and with `--yes` the order.

It is written into the store, which the running stages look at: no service has to run."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from core.codec import to_builtins
from core.errors import ConfigError, RequestError
from core.ids import InferenceId, Namespace, UserHash
from core.operations.exclusions import Foreseen, Wish
from learner.versions.exclusion_orders import OrdersOfExclusions
from onward.commands.accounts.deeds import by_shell, head_file, write_deed
from onward.output import console, show_json
from onward.replays.history import period, require_directory, version_named
from onward.wiring.foundation import open_foundation

_OPTIONS: Final = {"users": "--user", "turns": "--turn", "version": "--version"}


def exclude(
    directory: Path, overrides: Mapping[str, str], wished: Mapping[str, Any], why: str, *, do_it: bool, as_json: bool
) -> None:
    """Show what an exclusion would change, and with `do_it` order it.

    `wished`: the options by their names. Raises ConfigError naming the one at fault, or saying why nothing before the
    first use can be served."""
    wish = _wish(wished)
    require_directory(directory, overrides)
    number: int | None = None
    with closing(open_foundation(directory, overrides)) as service:
        orders = OrdersOfExclusions(service.store, service.blobs, service.settings.serving.cluster, service.clock)
        try:
            if do_it:
                number, foreseen = orders.order(
                    wish,
                    why,
                    by_shell(),
                    lambda work, given: write_deed(work, "order", "onward exclude", wish.namespace, **given),
                )
                head_file(service.layout, service.settings).keep(service.store)
            else:
                foreseen = orders.foresee(wish)
        except RequestError as error:
            option = _OPTIONS.get(error.param or "")
            raise ConfigError(f"{option}: {error.message}" if option else error.message) from error
    if as_json:
        show_json({"exclusion_id": number, **to_builtins(foreseen)})
        return
    for line in _lines(foreseen):
        console().print(line)
    if number is None:
        console().print("nothing was changed: `--yes` orders it, and an exclusion is not taken back")
    else:
        console().print(f"exclusion {number}, by {by_shell()}: {why}")


def _wish(wished: Mapping[str, Any]) -> Wish:
    begin, end = period(wished["from"], wished["to"])
    if not any(wished[name] is not None for name in ("user", "turn", "from", "to", "version")):
        raise ConfigError("say whose or which turns: --user, --turn, --from, --to or --version")
    return Wish(
        namespace=None if wished["namespace"] is None else Namespace(wished["namespace"]),
        users=tuple(map(UserHash, wished["user"] or ())),
        turns=tuple(map(InferenceId, wished["turn"] or ())),
        begin=begin,
        end=end,
        version=None if wished["version"] is None else version_named(wished["version"]),
    )


def _lines(foreseen: Foreseen) -> Iterator[str]:
    yield f"{foreseen.selected} turns in the store are excluded"
    if foreseen.gone:
        yield f"{foreseen.gone} turns that versions learned from are gone: nobody can tell whether they are excluded"
    if foreseen.back_to is None or foreseen.soon is None:
        yield "no version up to the newest learned from such a turn, and from now on none does; what serves stays"
        if foreseen.again:
            yield f"{foreseen.again} other turns of versions that were abandoned before are learned again"
        yield from _refused(foreseen)
        return
    yield f"versions learned from {foreseen.learned} excluded turns"
    if foreseen.abandoned:
        first, last = foreseen.abandoned[0], foreseen.abandoned[-1]
        yield (
            f"versions {first} to {last} are abandoned: {len(foreseen.abandoned)}, made by {foreseen.updates} updates"
            f"; learning goes on from version {foreseen.back_to}"
        )
    if foreseen.soon.servable == "rebuild":
        yield f"version {foreseen.back_to} is made again first, which takes about {foreseen.soon.about_s:.0f} s"
    yield (
        f"{foreseen.again} other turns that they learned from are learned again: about {foreseen.again_s:.0f} s of "
        "learning, plus the time for releases"
    )
    if foreseen.rollback is not None:
        yield f"version {foreseen.rollback} is ordered to serve again"
    yield from _refused(foreseen)


def _refused(foreseen: Foreseen) -> Iterator[str]:
    for version in foreseen.refused:
        yield f"version {version} will serve nobody"
