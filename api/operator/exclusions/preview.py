"""What an order to exclude turns would change: versions, updates and turns, how long it takes, who serves meanwhile."""

from collections.abc import Sequence
from typing import Any

from core.events import PolicyVersion
from core.ids import BASE, PolicyName, PolicyRef
from core.model.learned_from import Use, lineage_of, select_turns, uses
from core.operations.exclusions import Exclusion, Selection
from core.ports import Blobs, Clock
from core.store.policies import UNOFFERED
from core.store.work import View

_SPENT = ("seconds_updating", "seconds_publishing")
_LOOKED_AT = 1000  # versions, for the end of the learner's line
_GONE = ("rejected", "rolled_back")
NEEDS_ADMIN = (
    "These updates learned from other namespaces' turns, too: an order that makes them again needs the scope admin."
)


def foresee(
    view: View, blobs: Blobs, clock: Clock, cluster: str, selection: Selection, policy: PolicyName = BASE
) -> dict[str, Any]:
    """Return what would change of a policy, with a sentence for each thing (`says`). It changes nothing.

    The updates to make again are those of the line that ends with the newest version that was not taken back."""
    asked = Exclusion(exclusion_id=0, selection=selection, why="", by="", ordered_at=clock.now())
    selected = select_turns(view, [asked])
    live = view.releases.live(cluster, policy)
    found = list(uses(view, blobs, lineage_of(view, _tip(view, live, policy)), selected))
    first = _first_use(found)
    touched = found[first:]
    served = found  # the line of what serves, which is another one where that is not built upon
    if live is not None and all(use.policy.version != live for use in found):
        served = list(uses(view, blobs, lineage_of(view, view.policies.get(live)), selected))
    clean, tainted = served[: _first_use(served)], served[_first_use(served) :]
    learned = {each for use in touched for each in use.found}
    spent_s = sum(use.policy.metrics.get(name, 0.0) for use in touched for name in _SPENT)
    foreseen: dict[str, Any] = {
        "object": "exclusion.preview",
        "namespace": selection.namespace,
        "turns": len(selected.turns.keys() | learned),
        "turns_learned": len(learned),
        "unknown": sum(use.unknown for use in found),
        "first_use": None if not touched else touched[0].policy.version,
        "start": None if not touched else found[max(0, first - 1)].policy.version,
        "versions": [use.policy.version for use in touched],
        "updates": sum(use.others > 0 for use in touched),
        "changed_updates": sum(bool(use.found) for use in touched),
        "seconds": spent_s if touched else 0.0,
        "serves": live,
        "serves_what_is_excluded": live in {use.policy.version for use in tainted},
        "roll_back_to": _back_to(view, cluster, live, clean, policy) if tainted else None,
        "needs_admin": any(use.namespaces - {selection.namespace} for use in touched),
        "under_way": [
            each.exclusion_id for each in _under_way(view) if each.selection.namespace == selection.namespace
        ],
    }
    return foreseen | {"says": _says(foreseen, touched, selection)}


def _first_use(line: Sequence[Use]) -> int:
    """Return the place of the first version that learned from any of it; beyond the end where none did."""
    return next((place for place, use in enumerate(line) if use.found), len(line))


def _tip(view: View, live: PolicyRef | None, of: PolicyName) -> PolicyVersion | None:
    """Return the version that ends the learner's line, which is the live one unless newer ones are built upon it.

    Neither what was taken back nor what was built upon that is, nor what descends from another one that was live; but
    what obeys orders that the live version does not. Steps to a version that was refused are left with it."""
    serving = None if live is None else view.policies.get(live)
    obeyed = 0 if serving is None else serving.exclusions
    left = () if _under_way(view) else (UNOFFERED,)
    gone, on_line, tip = set[PolicyRef](), {live}, serving
    for policy, state in reversed(view.policies.newest(_LOOKED_AT, of)):
        if policy.version != live and (state in _GONE or policy.parent in gone):
            gone.add(policy.version)
        elif policy.parent in on_line or policy.exclusions > obeyed or live is None:
            on_line.add(policy.version)
            tip = tip if state in left else policy
    return tip


def _back_to(
    view: View, cluster: str, live: PolicyRef | None, before: Sequence[Use], of: PolicyName
) -> PolicyRef | None:
    """Return the newest version that served and had learned from nothing of it; None where that one serves, or none."""
    clean = {use.policy.version for use in before}
    served = view.releases.live_history(cluster, of)
    found = next((version for version in reversed(served) if version in clean), None)
    return None if found == live or live in clean else found


def _under_way(view: View) -> list[Exclusion]:
    return [each for each in view.exclusions.in_order() if not each.is_obeyed]


def _says(foreseen: dict[str, Any], touched: Sequence[Use], selection: Selection) -> list[str]:
    """Return it in sentences, for console and command line alike."""
    if not foreseen["turns"] and not touched:
        return [
            *_unknown(foreseen),
            "It selects no turn that there is: nothing is made again. Such turns never train when they come.",
        ]
    chosen = f"It selects {_count(foreseen['turns'], 'turn')}"
    if selection.users:
        chosen += ", and means what these users said of others', too"
    if not touched:
        return [
            *_unknown(foreseen),
            f"{chosen}, and no version of the learner's line learned from any: nothing is made again.",
            "None of them trains from now on.",
        ]
    said = [
        f"{chosen}; {_range(touched)} learned from {foreseen['turns_learned']} of them, or upon what did.",
        f"The learner goes back to version {foreseen['start']} and makes {_count(foreseen['updates'], 'update')} again,"
        f" {foreseen['changed_updates']} of them changed.",
        f"That takes about {_time(foreseen['seconds'])}: so long did these updates take the first time. On top comes"
        " what the learner did between its checkpoint before and that version.",
    ]
    said += _unknown(foreseen)
    if foreseen["needs_admin"]:
        said.append(NEEDS_ADMIN)
    serves = foreseen["serves"]
    if foreseen["serves_what_is_excluded"]:
        said.append(
            f"Until then version {serves} serves, which learned from them; what is made then passes gate and canary as"
            " any other version."
        )
        back = foreseen["roll_back_to"]
        said.append(
            "No version served before that had not learned from them."
            if back is None
            else f"Version {back} served before and learned from none of them: `onward rollback {back}` goes to it."
        )
    else:
        said.append(f"Until then version {serves} serves, which learned from none of them.")
    return said


def _unknown(foreseen: dict[str, Any]) -> list[str]:
    if not foreseen["unknown"]:
        return []
    return [
        f"{_count(foreseen['unknown'], 'turn')} that the line learned from"
        f" {'is' if foreseen['unknown'] == 1 else 'are'} gone from the store: whether they are meant cannot be said."
    ]


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _range(touched: Sequence[Use]) -> str:
    first, last = touched[0].policy.version, touched[-1].policy.version
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
