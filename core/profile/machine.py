"""The machine that a service is to run on."""

from dataclasses import dataclass

_PEAK_BF16_TFLOPS = {"B200": 2250.0, "H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0}
"""Speeds by a part of the card's name, for dense matrices, from the vendor's data sheets."""


@dataclass(frozen=True)
class Card:
    name: str
    memory_bytes: int

    @property
    def peak_tflops(self) -> float | None:
        """The peak in bfloat16, where the card is known."""
        return next((peak for name, peak in _PEAK_BF16_TFLOPS.items() if name in self.name.upper()), None)


@dataclass(frozen=True)
class Machine:
    cores: int
    memory_bytes: int
    """The memory that the service may use."""
    cards: tuple[Card, ...] = ()
    """GPUs, all alike; none: everything is computed on the processor."""
