"""A count of the values of a JSON text without making any: a body's cost depends on these, not on its bytes."""

from core.errors import TooLarge

Raw = bytes | memoryview
"""A body as it arrived: small, or large and in memory of its own."""
_COUNTED = b'",[{'
_OTHERS = bytes(byte for byte in range(256) if byte not in _COUNTED)


def count_values(raw: bytes) -> int:
    """Return at least the number of values; a text that is not JSON gets some number, too."""
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    bare = bare.replace(b'""', b"")  # two adjacent quotes do not change whether what follows is in a string
    return 1 + sum(outside.count(b",") + outside.count(b"[") + outside.count(b"{") for outside in bare.split(b'"')[::2])


def check_values(raw: bytes, most: int) -> None:
    """Raise TooLarge for a body with more than `most` values."""
    if count_values(raw) > most:
        raise TooLarge(f"the body holds more than {most} JSON values", code="too_many_values")
