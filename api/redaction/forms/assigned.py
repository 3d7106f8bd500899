"""Secrets that are known by their surroundings: values of what is called a password, a key or a token."""

from collections.abc import Iterator
from typing import Any, Final

from api.redaction.findings import SensitiveSpan, finding
from api.redaction.forms.lots import is_hex, is_jumbled, is_lot, is_mixed
from api.redaction.forms.table import SecretPattern, bits, literals

_PASSWORD: Final = r"pass(?:word|wd|phrase|code)?|pwd|kennwort|passwort|mot_de_passe"
_TOKEN: Final = (
    r"secret|token|credentials?|creds|auth|api[_. -]?key|apikey|[a-z]{0,20}[_. -]?key|signature|sas|dsn|webhook|license"
)
_VALUE: Final = r"""(?:"([^"\n]{4,400})"|'([^'\n]{4,400})'|`([^`\n]{4,400})`|([^\s"'`;,<>(){}\[\]|]{4,400}))"""
_BARE: Final = r"([^\s\"'`,;<>(){}\[\]]{8,})"
_ASSIGNED: Final = SecretPattern(
    rf"""(?i)(?:(?P<password>{_PASSWORD})|{_TOKEN})[\w.-]{{0,24}}(?:\\?["'\])]){{0,3}}[ \t]{{0,8}}"""
    rf"""(?:=>|:=|==|=|:|\bis\b|\bto\b|\bwas\b|\blautet\b)[ \t]{{0,8}}(?:u|b|r|f)?\\?{_VALUE}"""
)
_FLAG: Final = SecretPattern(rf"(?i)--?(?:[a-z]+-)?(?:{_PASSWORD}|token|secret|api-?key)[= ]{_VALUE}")
_DECLARED: Final = SecretPattern(
    r"(?im)^\s{0,8}(?:ENV|ARG|setx?)[ \t]+[A-Z0-9_]{0,40}"
    rf"(?:{_PASSWORD}|token|secret|key)[A-Z0-9_]{{0,20}}[ \t]+{_VALUE}"
)
_FOLLOWED: Final = SecretPattern(  # keys that stand behind what they are, as in a list or a letter
    r"(?i)(?:secret|token|access|private|api|key)(?:[ _-]?(?:key|token|id))?[ \n-]{1,3}([A-Za-z0-9+/=_.-]{16,400})"
)
_SPACED: Final = SecretPattern(rf"(?im)(?:^|\blogin[ \t]+\S+)\s{{1,8}}(?:{_PASSWORD})[ \t]+{_VALUE}[ \t]*$")
_IN_URL: Final = SecretPattern(r"[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s/:@'\"<>]{0,100}:([^\s/@'\"<>]{3,200})@[\w\[]")
_HEADER: Final = SecretPattern(
    r"(?i)\b(?:authorization|x-[a-z-]{0,30}(?:key|token|auth|secret))\\?[\"']?\s{0,3}[:=,]\s{0,3}\\?[\"']?"
    rf"(?:(?:bearer|basic|token|apikey|key|digest|negotiate)[ \t]+)?{_BARE}"
)
_BEARER: Final = SecretPattern(rf"(?i)\b(?:bearer|basic)[ \t]+{_BARE}")
_COOKIE: Final = SecretPattern(
    r"(?i)\bcookie\\?[\"']?[:=]\s{0,3}\\?[\"']?(?:[\w.-]{1,64}=[^\s;\"']{0,15};\s{0,3})*"
    r"[\w.-]{1,64}=([^\s;\"']{16,})"
)
_PEM: Final = SecretPattern(
    r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----((?:[\s\\nr\"',+]{0,12}[A-Za-z0-9+/=]{16,})+)"
)
_WRAPPED: Final = SecretPattern(r"(LS0tLS1CRUdJTi[A-Za-z0-9+/=]{40,})")  # a key in PEM, in base64 once more
_WEBHOOK: Final = SecretPattern(
    r"(?i)(https://[a-z0-9.-]+/(?:[a-z0-9]+/)?(?:services|webhooks?|hooks)/[A-Za-z0-9_/@.-]{24,})"
)
_LOT: Final = SecretPattern(r"[A-Za-z0-9+/_-]{20,}={0,2}")
_LONGEST_LOT: Final = 400  # what is longer is data: pictures, fonts, certificates
_SIGNS: Final = literals(
    ["pass", "pwd", "kennwort", "secret", "token", "key", "auth", "cred", "bearer", "basic", "cookie", "signature",
     "sas", "dsn", "webhook", "license", "mot_de_passe"]
)  # fmt: skip
_NO_SECRET: Final = SecretPattern(
    r"(?i)\$\{|\{\{|\{[a-z_.]*\}|%\(|%[sdr]|^\$|<[a-z _-]+>|process\.env|environ|getenv|x{4,}|\*{3,}|\.{3}|example"
    r"|change.?me|your|dummy|placeholder|redacted|todo|undefined|^(?:true|false|none|null|nil)$|^[a-z]+://|\\[wsdb]"
    r"|^sha\d+-"
)
_LETTERS: Final = SecretPattern(r"[A-Za-z]+(?:[ _.:/\\-]+[A-Za-z]+)*[.:]?")
_PLACE: Final = SecretPattern(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[\w./-]+/[\w./-]+\.[a-z]{2,5}")
_NAME: Final = SecretPattern(r"[A-Za-z]+(?:[ _.:/\\-]+[A-Za-z]+)*[_.:/ -]*\d{0,2}")
_COMMON: Final = frozenset(
    ("password", "pass", "passwd", "secret", "user", "username", "postgres", "guest", "root", "admin", "test", "pwd")
)
_DIGESTS: Final = ("sha1-", "sha256-", "sha384-", "sha512-", "sha256:", "sha512:", "base64,")


def find_assigned(text: str) -> Iterator[SensitiveSpan]:
    """Find values that are said to be secret."""
    if "://" in text:
        yield from (each for each in _first_groups(_IN_URL, text) if _is_in_url(text[each.start : each.end]))
        if "hook" in text or "services/" in text:
            yield from _first_groups(_WEBHOOK, text)
    if "PRIVATE KEY" in text:
        yield from _first_groups(_PEM, text)
    if "LS0tLS1CRUdJTi" in text:
        yield from _first_groups(_WRAPPED, text)
    if not _SIGNS.Match(text):
        return
    for match in _ASSIGNED.finditer(text):
        group, value = _value(match, 2)
        weigh = _is_password if match["password"] else _is_token
        if weigh(value, is_quoted=group < 5):
            yield finding(match, group, "SECRET")
    for pattern in (_FLAG, _DECLARED, _SPACED):
        for match in pattern.finditer(text):
            group, value = _value(match, 1)
            if _is_password(value, is_quoted=False):
                yield finding(match, group, "SECRET")
    for found in _first_groups(_FOLLOWED, text):
        if _is_bare_token(text[found.start : found.end]):
            yield found
    for each in (_HEADER, _BEARER, _COOKIE):
        for found in _first_groups(each, text):
            value = text[found.start : found.end]
            if is_mixed(value, 2.8) and not _is_no_secret(value):
                yield found


def find_lots(text: str) -> Iterator[SensitiveSpan]:
    """Find tokens that look drawn by lot, whatever stands around them."""
    for match in _LOT.finditer(text):
        token = _told_apart(match[0])
        if len(token) > _LONGEST_LOT or not is_lot(token):
            continue
        before = text[max(match.start() - 8, 0) : match.start()].lower()
        if not (before.endswith(_DIGESTS) or token.lower().startswith(_DIGESTS)):
            start = match.start() + match[0].index(token)
            yield SensitiveSpan(start, start + len(token), "SECRET")


def _told_apart(token: str) -> str:
    """Return the longest part of what may be a path, or all of it where none of its parts is a word."""
    if "/" not in token:
        return token
    parts = token.split("/")
    has_words = any(len(part) >= 3 and part.isalpha() and (part.islower() or part.istitle()) for part in parts)
    return max(parts, key=len) if has_words else token


def _first_groups(pattern: Any, text: str) -> Iterator[SensitiveSpan]:
    return (finding(match, 1, "SECRET") for match in pattern.finditer(text))


def _value(match: Any, first: int) -> tuple[int, str]:
    group = next(number for number in range(first, first + 4) if match[number])
    return group, match[group]


def _is_in_url(value: str) -> bool:
    return value.lower() not in _COMMON and not _NO_SECRET.is_in(value)


def _is_no_secret(value: str) -> bool:
    """Return whether it is written as a name, a place in code or a gap to fill in."""
    return _NO_SECRET.is_in(value) or _NAME.is_all_of(value) or _is_place(value)


def _is_place(value: str) -> bool:
    return _PLACE.is_all_of(value) and not any(is_lot(part, 12) or is_jumbled(part) for part in value.split("."))


def _is_password(value: str, *, is_quoted: bool) -> bool:
    """Return whether the value of a password is one, and not a name of it, a type or a piece of code."""
    if len(value) < 6 or _NO_SECRET.is_in(value):
        return False
    if is_jumbled(value):
        return True
    if _LETTERS.is_all_of(value) or _is_place(value):
        return False
    if not any(map(str.isalpha, value)) or (" " in value and not is_quoted):
        return False
    has_digit, has_sign = any(map(str.isdigit, value)), any(each in "!@#$%^&*+=?~" for each in value)
    if is_quoted:
        return has_digit or (" " not in value and has_sign)
    return (has_digit or (has_sign and len(value) >= 8)) and bits(value) >= 2.5


def _is_token(value: str, *, is_quoted: bool) -> bool:
    """Return whether the value of a key or a token is one: keys have names and places as well, which are none."""
    is_run = len(value) >= 20 and value.isalnum() and not _NO_SECRET.is_in(value)
    if is_run and (is_quoted or value.islower() or value.isupper()):  # code has no names so long without a sign in them
        return True
    if len(value) < 12 or " " in value or _is_no_secret(value):
        return False
    letters, digits = "".join(filter(str.isalpha, value)), sum(map(str.isdigit, value))
    if len(value) >= 16 and len(letters) >= 0.7 * len(value) and is_jumbled(letters):
        return True
    if is_hex(value) or is_lot(value, 12):
        return True
    least_bits = 3.0 if digits >= 8 else 3.5 if is_quoted else 3.7
    return is_mixed(value, least_bits) and digits >= (3 if is_quoted else 4)


def _is_bare_token(value: str) -> bool:
    """Return whether what stands behind the word for a key is one, and not a word or a name."""
    if _is_no_secret(value):
        return False
    letters = "".join(filter(str.isalpha, value))
    digits, parts = sum(map(str.isdigit, value)), value.replace("_", "-").split("-")
    has_words = any(len(part) >= 3 and part.isalpha() and (part.islower() or part.istitle()) for part in parts)
    return (
        is_hex(value) or is_lot(value, 16) or (not has_words and letters != "" and digits >= 4 and bits(value) >= 3.2)
    )
