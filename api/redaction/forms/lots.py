"""Whether a token looks drawn by lot, as keys are, or made by people, as names are."""

from itertools import pairwise
from typing import Final

from api.redaction.forms.table import SecretPattern, bits

_HEX: Final = SecretPattern(r"[0-9a-f]{32,}|[0-9A-F]{32,}")
_ONE_CASE_HEX: Final = SecretPattern(r"[0-9a-f-]+|[0-9A-F-]+")
_RUN: Final = SecretPattern(r"[A-Z]?[a-z]{5,}|[A-Z]{6,}")
_SHORTEST: Final = 20
_SHORTEST_OF_ONE_CASE: Final = 20
_LEAST_BITS: Final = 3.8
_LEAST_TURNS: Final = 0.3  # the share of places at which the kind of character changes; of random base64 it is 0.63
_MOST_WORDS: Final = 0.28  # the share of characters that are in what could be spoken
_VOWELS: Final = frozenset("aeiouyAEIOUY")


def is_hex(token: str) -> bool:
    """Return whether it is a key in hexadecimal digits, or the digest of something: the token itself does not tell."""
    return _HEX.is_all_of(token)


def is_lot(token: str, shortest: int = _SHORTEST) -> bool:
    """Return whether a token has kinds of characters mixed as a lot has them, and few words.

    One that has capitals alone, or none, and digits must be longer, and is no number in hexadecimal digits."""
    if len(token) < shortest:
        return False
    kinds = [_kind(character) for character in token]
    upper, lower, digit = kinds.count("A"), kinds.count("a"), kinds.count("0")
    if min(upper, lower) < 2 and (len(token) < _SHORTEST_OF_ONE_CASE or digit < 4 or "_" in token or _is_digest(token)):
        return False
    if max(upper, lower) < 4 or digit < 2:
        return False
    turns = sum(first != second for first, second in pairwise(kinds))
    if turns < _LEAST_TURNS * len(token) or bits(token) < min(_LEAST_BITS, 0.8 * len(token).bit_length()):
        return False
    return sum(len(run[0]) for run in _RUN.finditer(token) if _is_spoken(run[0])) < _MOST_WORDS * len(token)


def _is_digest(token: str) -> bool:
    return _ONE_CASE_HEX.is_all_of(token)


def is_jumbled(token: str) -> bool:
    """Return whether letters are capital and small without any order, as in no name."""
    turns = sum(first.isupper() != second.isupper() for first, second in pairwise(token))
    return token.isalpha() and len(token) >= 8 and turns >= 0.38 * len(token)


def is_mixed(token: str, least_bits: float) -> bool:
    """Return whether a token has letters and digits, and is varied enough for one that people did not write."""
    has_digit, has_letter = any(map(str.isdigit, token)), any(map(str.isalpha, token))
    return has_digit and has_letter and bits(token) >= least_bits


def _kind(character: str) -> str:
    return "A" if character.isupper() else "a" if character.islower() else "0" if character.isdigit() else "-"


def _is_spoken(run: str) -> bool:
    vowels = sum(character in _VOWELS for character in run)
    return 0.22 * len(run) <= vowels <= 0.65 * len(run)
