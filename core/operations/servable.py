"""How soon a version can be served: at once while its weights are kept, later where they can be made again."""

from typing import Final, Literal

import msgspec

MOST_REMADE_S: Final = 900.0
"""Of updates that are worth making again, by what they took."""
WEIGHTS_BYTES: Final = "weights_bytes"
"""The figure of a version that says what its weights take of the blobs."""


class Servable(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a version can be served; `about_s`: how long it is made again for, `lost`: why it cannot be.

    `exclusion_id`: the exclusion that left it behind, whether or not its weights are kept."""

    servable: Literal["now", "rebuild", "lost"]
    about_s: float | None = None
    lost: str | None = None
    exclusion_id: int | None = None


NOW: Final = Servable(servable="now", about_s=0.0)
