"""The rewards of chosen turns."""

from collections.abc import Sequence

from core.events import Reward
from core.ports import Store
from onward.replays.selection.known import these_known
from onward.replays.selection.language import Selection


def chosen(rewards: Sequence[Reward], selection: Selection, store: Store) -> list[Reward]:
    """Return all revisions of the turns that are chosen, which is decided by what is known in the end."""
    with store.look() as view:
        known = these_known(view, {reward.inference_id for reward in rewards})
        names = {each.inference_id for each in known if selection.admits(each)}
    return [reward for reward in rewards if reward.inference_id in names]
