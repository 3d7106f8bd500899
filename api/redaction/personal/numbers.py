"""Numbers and addresses by which people are found: e-mail, phone, bank account, card, identity, internet address."""

import ipaddress
from collections.abc import Iterator
from typing import Any, Final

from api.redaction.findings import Kind, SensitiveSpan, finding
from api.redaction.forms.table import SecretPattern

_EMAIL: Final = SecretPattern(
    r"[\p{L}\p{N}._%+-]*[\p{L}\p{N}_%+-](?:@|%40)((?:[\p{L}\p{N}-]+\.)+)([A-Za-z]{2,24})\b(\(?)"
)
_DOMAINS: Final = frozenset(
    [
        "com",
        "org",
        "net",
        "edu",
        "gov",
        "mil",
        "int",
        "info",
        "biz",
        "name",
        "pro",
        "mobi",
        "jobs",
        "io",
        "dev",
        "app",
        "ai",
        "cloud",
        "online",
        "shop",
        "store",
        "tech",
        "xyz",
        "site",
        "blog",
        "news",
        "agency",
        "digital",
        "email",
        "solutions",
        "group",
        "studio",
        "world",
        "life",
        "today",
        "live",
        "media",
        "company",
        "consulting",
        "berlin",
        "paris",
        "london",
        "amsterdam",
        "wien",
        "zuerich",
        "bank",
        "museum",
    ]
)
_NOBODYS: Final = ("example.com.", "example.org.", "example.net.", "example.", "test.", "invalid.", "localhost.")
_IBAN: Final = SecretPattern(r"\b([A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,4})?)\b")
_CARD: Final = SecretPattern(
    r"(?:^|[^\w.])((?:(?:[3-6][0-9]{3}|2[2-7][0-9]{2})[ -]?[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{1,7})"
    r"|(?:3[47][0-9]{2}|1800|2131)[ -]?[0-9]{6}[ -]?[0-9]{5})\b"
)
_SAID_CARD: Final = SecretPattern(r"(?i)\b(?:card|pan|cc|visa|mastercard|maestro|amex)\b[^0-9\n]{0,16}([0-9]{12,19})\b")
_SAID_IP: Final = SecretPattern(
    r"(?i)\b(?:ip|client|from|remote|addr(?:ess)?|host|peer|x-forwarded-for"
    r"|x-real-ip)[\"']?[ =:\"'\[]{1,4}((?:[0-9]{1,3}\.){3}[0-9]{1,3})\b"
)
_SOCIAL: Final = SecretPattern(r"\b([0-8][0-9]{2}-[0-9]{2}-[0-9]{4})\b")
_IP: Final = SecretPattern(r"(?:^|[^\w.])((?:[0-9]{1,3}\.){3}[0-9]{1,3})(?:$|[^\w.-]|\.(?:\s|$))")
_INTERNATIONAL: Final = SecretPattern(
    r"(?:^|[^\w+])(\+[1-9][0-9]{0,2}(?:[ .\-/]?\(?[0-9]{1,5}\)?){2,7}"
    r"|\b00[1-9][0-9]{0,2}(?:[ /-]\(?[0-9]{1,5}\)?){2,7})\b"
)
_AMERICAN: Final = SecretPattern(
    r"(?:^|[^\w.+-])((?:(?:\+?1|001)[ .-])?(?:\([2-9][0-9]{2}\)[ ]?"
    r"|[2-9][0-9]{2}[ .-])[0-9]{3}[ .-][0-9]{4}(?:x[0-9]{1,5})?)\b"
)
_NATIONAL: Final = SecretPattern(r"(?:^|[^\w.:+/-])(\(?0[0-9]{1,5}\)?[ /-][0-9]{2,8}(?:[ -][0-9]{2,6}){0,4})\b")
_SAID: Final = SecretPattern(
    r"(?i)(?:phone|mobile|cell|tel(?:efon|éfono|efoon|éphone|\.)?|telephone|call(?: me)?|fax|whatsapp|handy"
    r"|mobil|móvil|portable|"
    r"contact|sms|dial|number|nummer|numéro|número|reach)[^0-9+(\n]{0,24}(\+?\(?[0-9][0-9 ()./-]{5,20}[0-9])\b"
)
_LEAST_DIGITS: Final = 7
_MOST_DIGITS: Final = 15


def find_numbers(text: str) -> Iterator[SensitiveSpan]:
    if "@" in text or "%40" in text:
        yield from (
            SensitiveSpan(match.start(), match.end(2), "EMAIL") for match in _EMAIL.finditer(text) if _is_email(match)
        )
    yield from _checked(_IBAN, text, "IBAN", _is_iban)
    yield from _checked(_CARD, text, "CARD", _is_card)
    yield from _checked(_SAID_CARD, text, "CARD", _is_card)
    yield from _checked(_SAID_IP, text, "IP", _is_global)
    yield from _checked(_SOCIAL, text, "ID", _is_social)
    yield from _checked(_IP, text, "IP", _is_public)
    for pattern in (_INTERNATIONAL, _AMERICAN, _NATIONAL, _SAID):
        yield from _checked(pattern, text, "PHONE", _is_phone)


def _checked(pattern: Any, text: str, kind: Kind, check: Any) -> Iterator[SensitiveSpan]:
    return (finding(match, 1, kind) for match in pattern.finditer(text) if check(match[1]))


def _is_email(match: Any) -> bool:
    domain, top = match[1].lower(), match[2].lower()
    is_known = len(top) == 2 or top in _DOMAINS
    is_git = match[0].lower().startswith("git@")
    return is_known and not match[3] and not is_git and not f"{domain}{top}.".endswith(_NOBODYS)


def _is_iban(text: str) -> bool:
    plain = text.replace(" ", "").replace("-", "")
    if not 15 <= len(plain) <= 34:
        return False
    number = "".join(str(int(character, 36)) for character in plain[4:] + plain[:4])
    return int(number) % 97 == 1


def _is_card(text: str) -> bool:
    digits = [int(character) for character in text if character.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) < 4:
        return False
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_social(text: str) -> bool:
    area, group, serial = text.split("-")
    return area not in ("000", "666", "123") and group != "00" and serial != "0000"


def _is_global(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_global and not address.is_multicast


def _is_public(text: str) -> bool:
    """Return whether it is a public address, and not likely the number of a version."""
    return _is_global(text) and not text.endswith(".0") and not text.startswith(("1.", "2.", "3.", "4."))


def _is_phone(text: str) -> bool:
    digits = [character for character in text if character.isdigit()]
    return _LEAST_DIGITS <= len(digits) <= _MOST_DIGITS and len(set(digits)) > 2
