"""`onward exclude`: what an exclusion changes, and the order to go back to before the first use of what it excludes.

It is written into the store, which the running stages look at: the exclusion, the orders to the release controller and
the line of the audit trail together, or none of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.codec import plain, to_builtins
from core.errors import ConfigError
from core.ids import InferenceId, Namespace, PolicyRef, UserHash
from core.operations.exclusions import Exclusion
from core.operations.fleet import OrderKind
from core.operations.servable import Servable
from learner.batches.excluded import turns_of
from learner.versions.provenance import ancestry, learned_by
from onward.commands.accounts.deeds import by_shell, head_file, write_deed
from onward.output import console, show_json
from onward.replays.history import period, require_directory, version_named
from onward.wiring.foundation import Foundation, open_foundation

_NEWEST = 200  # versions among which the learner's newest is looked for


@dataclass(frozen=True)
class Foreseen:
    """What an exclusion would change.

    `learned`: excluded turns that versions learned from, up to the newest; `abandoned`: the versions from the first of
    these on; `again`: what else these learned from; `gone`: turns of which nobody can tell whether they are excluded."""

    learned: int
    again: int
    gone: int
    abandoned: Sequence[PolicyRef]
    back_to: PolicyRef | None
    soon: Servable | None
    orders: Sequence[tuple[OrderKind, PolicyRef]]

    def told(self) -> dict[str, Any]:
        return {
            "learned": self.learned,
            "again": self.again,
            "gone": self.gone,
            "abandoned": list(map(plain, self.abandoned)),
            "back_to": None if self.back_to is None else plain(self.back_to),
            "servable": None if self.soon is None else to_builtins(self.soon),
            "orders": [{"kind": kind, "version": plain(version)} for kind, version in self.orders],
        }


def exclude(
    directory: Path, overrides: Mapping[str, str], wished: Mapping[str, Any], why: str, *, do_it: bool, as_json: bool
) -> None:
    """Show what an exclusion would change, and with `do_it` order it.

    `wished`: the options by their names. Raises ConfigError naming the one at fault, or saying why nothing before the
    first use can be served."""
    require_directory(directory, overrides)
    with closing(open_foundation(directory, overrides)) as service:
        what = _exclusion(service, wished)
        foreseen = foresee(service, what)
        number = _order(service, what, why, foreseen) if do_it else None
    if as_json:
        show_json({"exclusion_id": number, **foreseen.told()})
        return
    for line in _lines(foreseen):
        console().print(line)
    done = "nothing was changed: `--yes` orders it" if number is None else f"exclusion {number}, by {by_shell()}: {why}"
    console().print(done)


def _exclusion(service: Foundation, wished: Mapping[str, Any]) -> Exclusion:
    begin, end = period(wished["from"], wished["to"])
    users, turns = wished["user"] or (), set(wished["turn"] or ())
    if wished["version"] is not None:
        version = version_named(wished["version"])
        learned = {reward.inference_id for reward in learned_by([version], service.blobs)}
        if not learned:
            raise ConfigError(f"--version {wished['version']}: it learned from nothing, or nobody knows from what")
        turns = learned & turns if turns else learned
    if not (users or turns or begin or end):
        raise ConfigError("say whose or which turns: --user, --turn, --from, --to or --version")
    return Exclusion(
        namespace=None if wished["namespace"] is None else Namespace(wished["namespace"]),
        users=frozenset(map(UserHash, users)),
        turns=frozenset(map(InferenceId, turns)),
        begin=begin,
        end=end,
    )


def foresee(service: Foundation, what: Exclusion) -> Foreseen:
    """Follow the lineage of the learner's newest version, and find where it first learned from what is excluded."""
    cluster = service.settings.serving.cluster
    with service.store.look() as view:
        live = view.releases.live(cluster)
    if live is None:
        raise ConfigError("nothing serves yet")
    lineage = _lineage_upon(service, live)
    learned, others, gone = set[InferenceId](), set[InferenceId](), 0
    first: int | None = None
    for place, version in enumerate(lineage):
        ids = {reward.inference_id for reward in learned_by([version], service.blobs)}
        known = list(turns_of(ids, service.store))
        found = {turn.inference_id for turn in known if what.covers(turn)}
        learned |= found
        gone += len(ids) - len(known)
        first = place if first is None and found else first
        others |= ids - found if first is not None else set()
    if first is None:
        return Foreseen(0, 0, gone, (), None, None, ())
    back_to, soon = _before(service, lineage[:first], live)
    orders = list(_orders(service, lineage[first:], live, back_to))
    return Foreseen(len(learned), len(others - learned), gone, lineage[first:], back_to, soon, orders)


def _lineage_upon(service: Foundation, live: PolicyRef) -> list[PolicyRef]:
    """Return the lineage of the newest version that goes on from the live one, or is it."""
    with service.store.look() as view:
        newest = [policy.version for policy, _ in view.policies.newest(_NEWEST, live.policy)]
    lineages = (ancestry(service.store, version) for version in newest)
    return next((lineage for lineage in lineages if live in lineage), None) or ancestry(service.store, live)


def _before(service: Foundation, clean: Sequence[PolicyRef], live: PolicyRef) -> tuple[PolicyRef, Servable]:
    """Return the last version that may be gone back to, and how soon it serves. Raises ConfigError without one."""
    with service.store.look() as view:
        served = set(view.releases.live_history(service.settings.serving.cluster))
        soon = view.files.servable(clean)
    for version in reversed(clean):
        if (version in served or live in clean) and soon[version].servable != "lost":
            return version, soon[version]
    raise ConfigError("no version from before the first use of it served and can be served again")


def _orders(
    service: Foundation, abandoned: Sequence[PolicyRef], live: PolicyRef, back_to: PolicyRef
) -> Iterator[tuple[OrderKind, PolicyRef]]:
    """Yield what keeps abandoned versions from users: the way back, or where they reached no live version, its ends."""
    if live in abandoned:
        yield "rollback", back_to
        return
    with service.store.look() as view:
        states = {version: view.policies.state_of(version) for version in abandoned}
    if "canary" in states.values():
        yield "rollback", live
    yield from (("hold", version) for version, state in states.items() if state == "candidate")


def _order(service: Foundation, what: Exclusion, why: str, foreseen: Foreseen) -> int:
    now, by = service.clock.now(), by_shell()
    cluster = service.settings.serving.cluster
    with service.store.work() as work:
        number = work.exclusions.add(what, why, by, now)
        given = {
            f"{kind}_{version}": str(work.orders.give(cluster, kind, version, why, by, now))
            for kind, version in foreseen.orders
        }
        write_deed(work, "order", "onward exclude", what.namespace, exclusion_id=str(number), **given)
    head_file(service.layout, service.settings).keep(service.store)
    return number


def _lines(foreseen: Foreseen) -> Iterator[str]:
    if foreseen.gone:
        yield f"{foreseen.gone} turns that versions learned from are gone: nobody can tell whether they are excluded"
    if foreseen.back_to is None or foreseen.soon is None:
        yield "no version up to the newest learned from such a turn, and from now on none does; what serves stays"
        return
    first, last = foreseen.abandoned[0], foreseen.abandoned[-1]
    yield f"{foreseen.learned} excluded turns were learned from, first by version {first}"
    yield f"versions {first} to {last} are abandoned ({len(foreseen.abandoned)}); version {foreseen.back_to} is gone on from"
    if foreseen.soon.servable == "rebuild":
        yield f"version {foreseen.back_to} is made again first, which takes about {foreseen.soon.about_s:.0f} s"
    yield f"{foreseen.again} other turns that they learned from are learned again"
    for kind, version in foreseen.orders:
        yield f"order: {kind} {version}"
