"""The allowed temperatures: 0, which asks for the likeliest token, and those from the least to the largest.

Others are refused wherever a temperature comes in. Logits divided by a tiny one leave the range of float32: the row
becomes NaN, useless to the user and to the learner."""

from typing import Annotated

from pydantic import AfterValidator

LEAST_TEMPERATURE = 0.01
LARGEST_TEMPERATURE = 2.0
TEMPERATURES = f"0, or from {LEAST_TEMPERATURE:g} to {LARGEST_TEMPERATURE:g}"


def is_temperature(value: float) -> bool:
    """Return whether a value is an allowed temperature; NaN is not."""
    return value == 0 or LEAST_TEMPERATURE <= value <= LARGEST_TEMPERATURE


def _checked(value: float) -> float:
    if not is_temperature(value):
        raise ValueError(f"temperature: {value} is not allowed; use {TEMPERATURES}")
    return value


Temperature = Annotated[float, AfterValidator(_checked)]
"""For settings and files."""
