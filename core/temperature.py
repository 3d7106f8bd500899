"""Which temperatures there are: 0, which asks for the likeliest token, and from the least to the largest one.

What lies between is refused wherever a temperature comes in. Logits divided by it leave what float32 can hold: the row
becomes NaN, and neither the user nor the learner gets anything of it.
"""

from typing import Annotated

from pydantic import AfterValidator

LEAST_TEMPERATURE = 0.01
LARGEST_TEMPERATURE = 2.0
TEMPERATURES = f"0, or from {LEAST_TEMPERATURE:g} to {LARGEST_TEMPERATURE:g}"


def is_temperature(value: float) -> bool:
    """Not for NaN, which is no number that could be compared."""
    return value == 0 or LEAST_TEMPERATURE <= value <= LARGEST_TEMPERATURE


def _checked(value: float) -> float:
    if not is_temperature(value):
        raise ValueError(f"temperature: {value} is not allowed; use {TEMPERATURES}")
    return value


Temperature = Annotated[float, AfterValidator(_checked)]
"""For settings and files."""
