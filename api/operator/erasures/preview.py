"""What an order to erase would remove, which versions learned from it, and what it costs to learn again without it."""

from typing import Any

from api.operator.exclusions.preview import foresee
from core.ids import BASE, Namespace, PolicyName, UserHash
from core.operations.erasures import ErasedKind
from core.operations.exclusions import Selection
from core.ports import Blobs, Clock
from core.records.erasure_orders import sessions_of
from core.store.work import View

_NAMED = 5000  # sessions that the preview looks at by their names; a user with more is looked at by his own turns


def preview(
    view: View,
    blobs: Blobs,
    clock: Clock,
    cluster: str,
    namespace: Namespace,
    kind: ErasedKind,
    subject: str,
    goes: PolicyName | None = None,
) -> dict[str, Any]:
    """Return what would be removed, and what would be learned again; it changes nothing.

    `goes`: the policy that is erased as well, and learns nothing again."""
    now = clock.now()
    sessions = sessions_of(view, namespace, kind, subject, now)
    selection = Selection(namespace=namespace, users=(UserHash(subject),))
    if kind == "namespace":
        selection = Selection(namespace=namespace, until=now)
    elif kind == "session" or len(sessions) <= _NAMED:
        selection = Selection(namespace=namespace, sessions=tuple(sessions))
    foreseen = _of_all(view, blobs, clock, cluster, selection, goes)
    turns = view.sweeps.turns_in(namespace, sessions, now)
    others = view.sweeps.of_others(namespace, sessions, UserHash(subject)) if kind == "user" else 0
    exports = view.exports.holding(namespace, sessions)
    exported = f"Others have them in {_count(len(exports), 'export')}: {', '.join(exports)}."
    said = [
        f"{_count(len(sessions), 'session')} with {_count(len(turns), 'turn')} would be erased from log, store,"
        " archive, live state, dead letters and the learner's files, with all outcomes and rewards.",
        *([f"{_count(others, 'turn')} of them are others', in sessions that they share."] if others else []),
        *([exported] if exports else []),
        *foreseen["says"],
    ]
    return {
        **foreseen,
        "object": "erasure.preview",
        "kind": kind,
        "subject": subject,
        "sessions": len(sessions),
        "turns": len(turns),
        "turns_of_others": others,
        "exports": exports,
        "says": said,
    }


def _of_all(
    view: View, blobs: Blobs, clock: Clock, cluster: str, selection: Selection, goes: PolicyName | None
) -> dict[str, Any]:
    """Return what the base policy's line would lose, and of all lines together how many updates are to be made again.

    `updates` and `seconds` are sums; `says` speaks of each policy that learned from any of it."""
    foreseen = foresee(view, blobs, clock, cluster, selection)
    names = [name for name in view.policies.names() if name not in (BASE, goes)]
    others = {name: foresee(view, blobs, clock, cluster, selection, name) for name in names}
    learned = {name: found for name, found in others.items() if found["versions"]}
    if learned and not foreseen["versions"]:
        foreseen["says"] = []  # what the base policy did not learn, nobody asks about
    said = [f"Policy {name}: {sentence}" for name, found in learned.items() for sentence in found["says"]]
    sums = {of: foreseen[of] + sum(found[of] for found in learned.values()) for of in ("updates", "seconds")}
    return {**foreseen, **sums, "policies": [*learned], "says": [*foreseen["says"], *said]}


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
