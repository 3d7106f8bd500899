"""Bytes in words."""


def gigabytes(number: float) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"
