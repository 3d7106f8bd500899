"""Products of rows that are of several adapters upon one base.

The base's product is made once for all rows, and each row's own adapter adds to it: x W^T + b + (x A^T) B^T. Rows that
decode are one token each, and mostly of different adapters: their thin matrices lie side by side, in the order of the
slots, and are multiplied in one batch (as Punica gathers them, arXiv 2310.18547). A slot's are written when another
version takes it, and not again for each step. Where they are so large that this would take much memory, and in prompts,
rows of one adapter are multiplied together (as S-LoRA does, arXiv 2311.03285).

S slots, N rows, n rows that decode, I inputs, O outputs, R rank. Modules that share a product are cut into G blocks of
equally many outputs, g, so that no block is multiplied by the zeros beside its own matrix."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from serving.engines.local.modules.products import Beside, Blocks, Product


class Seats:
    """The adapters of all slots, for one product. Used by the engine's thread."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._a_SEI: Tensor | None = None  # E = G * R
        self._b_SGRg: Tensor | None = None
        self._apart: dict[int, Beside] = {}

    def put(self, slot: int, product: Product) -> None:
        """Let a slot's rows be computed by this version's product."""
        self._apart.pop(slot, None)
        blocks = product.blocks if isinstance(product, Beside) else None
        if isinstance(product, Beside) and (blocks is None or not self._fits(blocks)):
            self._apart[slot] = product
            blocks = None
        if blocks is not None:
            if self._a_SEI is None or self._b_SGRg is None:
                self._a_SEI = blocks.a_EI.new_zeros(self._slots, *blocks.a_EI.shape)
                self._b_SGRg = blocks.b_GRg.new_zeros(self._slots, *blocks.b_GRg.shape)
            self._a_SEI[slot], self._b_SGRg[slot] = blocks.a_EI, blocks.b_GRg
        elif self._b_SGRg is not None:
            self._b_SGRg[slot] = 0

    def _fits(self, blocks: Blocks) -> bool:
        """Return whether an adapter has the shape of those that came before."""
        return self._b_SGRg is None or blocks.b_GRg.shape == self._b_SGRg.shape[1:]

    def add_to(self, y_NO: Tensor, x_NI: Tensor, seated: "Seated") -> None:
        """Add what the adapters of the first rows give."""
        if self._a_SEI is not None and self._b_SGRg is not None:
            self._add(y_NO[: seated.rows], x_NI[: seated.rows], seated)
        for places, product in _by_adapter(seated.slots, self._apart):
            places_n = torch.tensor(places, device=y_NO.device)
            y_NO.index_add_(0, places_n, x_NI[places_n] @ product.a_RI.t() @ product.b_OR.t())

    def _add(self, y_nO: Tensor, x_nI: Tensor, seated: "Seated") -> None:
        assert self._a_SEI is not None
        assert self._b_SGRg is not None
        span = slice(seated.first, seated.last + 1)
        if seated.is_one_run:
            _add_blocks(y_nO, x_nI, self._a_SEI[span], self._b_SGRg[span])
        elif seated.last + 1 - seated.first <= 2 * seated.rows:  # the seats between them are computed for nothing
            places_n = seated.slots_n - seated.first
            x_mI = x_nI.new_zeros(seated.last + 1 - seated.first, x_nI.shape[1]).index_copy_(0, places_n, x_nI)
            y_mO = y_nO.new_zeros(x_mI.shape[0], y_nO.shape[1])
            _add_blocks(y_mO, x_mI, self._a_SEI[span], self._b_SGRg[span])
            y_nO.add_(y_mO.index_select(0, places_n))
        else:
            a_nEI, b_nGRg = (each.index_select(0, seated.slots_n) for each in (self._a_SEI, self._b_SGRg))
            _add_blocks(y_nO, x_nI, a_nEI, b_nGRg)


def _add_blocks(y_nO: Tensor, x_nI: Tensor, a_nEI: Tensor, b_nGRg: Tensor) -> None:
    n, blocks, rank, block = b_nGRg.shape
    thin_n1E = torch.bmm(x_nI[:, None], a_nEI.transpose(1, 2))
    y_nO.view(n * blocks, 1, block).baddbmm_(
        thin_n1E.view(n * blocks, 1, rank), b_nGRg.reshape(n * blocks, rank, block)
    )


def _by_adapter(slots: Sequence[int], apart: dict[int, Beside]) -> list[tuple[list[int], Beside]]:
    found: dict[int, tuple[list[int], Beside]] = {}
    for place, slot in enumerate(slots if apart else ()):
        if slot in apart:
            found.setdefault(id(apart[slot]), ([], apart[slot]))[0].append(place)
    return list(found.values())


class Seated:
    """The slots of the rows that decode in a step, in order."""

    def __init__(self, slots: Sequence[int], device: torch.device) -> None:
        self.slots, self.rows = slots, len(slots)
        self.first, self.last = (slots[0], slots[-1]) if slots else (0, -1)
        self.is_one_run = self.last + 1 - self.first == self.rows
        self.slots_n = torch.tensor(slots, device=device, dtype=torch.long)


@dataclass(frozen=True)
class Span:
    """Neighbouring rows [start, end) of one adapter: a prompt's."""

    start: int
    end: int
    product: Beside


@dataclass(frozen=True)
class Mixed:
    """The product of a step whose rows are of several adapters."""

    base: Product
    seats: Seats
    seated: Seated
    spans: Sequence[Span] = field(default=())

    def __call__(self, x_NI: Tensor) -> Tensor:
        return self._changed(self.base(x_NI), x_NI)

    def add(self, residual_NO: Tensor, x_NI: Tensor) -> Tensor:
        return self._changed(self.base.add(residual_NO, x_NI), x_NI)

    def _changed(self, y_NO: Tensor, x_NI: Tensor) -> Tensor:
        if self.seated.rows:
            self.seats.add_to(y_NO, x_NI, self.seated)
        for span in self.spans:
            x_PI, product = x_NI[span.start : span.end], span.product
            y_NO[span.start : span.end].addmm_(x_PI @ product.a_RI.t(), product.b_OR.t())
        return y_NO
