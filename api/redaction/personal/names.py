"""Names of people: a known first name before another name, or names where a title, a greeting or a label says so.

There is no model of language here: a name that is in no list, and stands where nothing says that it is one, is not
found. Models that find more of them take a hundred times as long as all else together (decision 49)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from api.redaction.findings import SensitiveSpan, finding
from api.redaction.forms.table import SecretPattern

# The lists are files beside this one. What is in none of them is known by its surroundings alone.
_HERE: Final = Path(__file__).parent


def _read(name: str) -> frozenset[str]:
    lines = (_HERE / name).read_text(encoding="utf-8").split("\n")
    return frozenset(line for line in lines if line and not line.startswith("#"))


FIRST: Final = _read("first_names.txt")
FIRST_AND_WORDS: Final = _read("first_names_and_words.txt")
LAST: Final = _read("last_names.txt")
NO_NAMES: Final = _read("words.txt")


_NAME: Final = r"\p{Lu}(?:['’]\p{Lu})?\p{Ll}+(?:[-’']?\p{Lu}\p{Ll}+)?"
_LINK: Final = r"(?:(?:van|von|de|del|della|di|da|das|do|dos|du|der|den|la|le|el|al|bin|ibn|zu|ter|ten|y|e)[ ]){0,2}"
_INITIAL: Final = r"\p{Lu}\."
_FULL: Final = SecretPattern(rf"({_NAME})((?:[ ]{{1,2}}(?:{_INITIAL}|{_NAME})){{0,2}}[ ]{{1,2}}{_LINK}{_NAME})")
_TURNED: Final = SecretPattern(rf"\b({_NAME}), ({_NAME})(?: {_INITIAL})?")
_TITLED: Final = SecretPattern(
    r"\b(?:Mr|Mrs|Ms|Miss|Mx|Dr|Prof|Herr|Herrn|Frau|Mme|Mlle|Monsieur|Madame|Señor|Señora|Sr|Sra|Sig|Signor|Signora"
    r"|Dhr|Mevr|Mevrouw|Pan|Pani|Shri|Smt)\.?[ ](?:(?:Dr|Prof|med)\.[ ]?)*"
    rf"((?:(?:{_INITIAL}|{_NAME})[ ]){{0,2}}{_LINK}{_NAME})"
)
_CALLED: Final = SecretPattern(
    r"\b(?i:my name is|name is|i am|i['’]m|this is|call me|mein name ist|ich hei(?:ß|ss)e|je m['’]appelle|me llamo"
    r"|mi chiamo|dear|hi|hello|hey|hallo|liebe|lieber|cher|chère|querido|querida|bonjour|ciao|regards,?|sincerely,?"
    r"|cheers,?|thanks,?|greetings,?|gr(?:ü|ue)(?:ß|ss)e,?|cordialement,?|saludos,?)[ \n]{1,3}"
    rf"((?:{_NAME}[ ]){{0,2}}{_LINK}{_NAME})"
)
_NEAR: Final = SecretPattern(
    r"\b(?i:reported by|signed by|written by|asked by|sent by|approved by|assigned to|on behalf of|ask|asked|met|told"
    r"|spoke (?:to|with)|logged in:|contact|customer|caller|colleague|patient|manager|boss|friend|cc|attn)[: ]{1,3}"
    rf"({_NAME}(?:[ ]{_INITIAL})?[ ]{_LINK}{_NAME})"
)
_LABELLED: Final = SecretPattern(
    r"(?i:(?:full|first|last|given|family|sur|middle|customer|contact|patient|employee|client|recipient|sender|holder"
    r"|cardholder|user|display|owner|billing|shipping)[_ -]?name|\bname|surname|customer|patient|employee|recipient"
    r"|assignee|reporter|manager|applicant|tenant|contact|nachname|vorname|kunde|nom|prénom|nombre|apellido|cognome"
    r"|nome|naam)"
    rf"\\?[\"']?[ ]?[:=][ ]?(\\?[\"'])?((?:{_NAME}[ ]){{0,3}}{_LINK}{_NAME})(?:$|[^\p{{L}}\[(])"
)


def find_names(text: str) -> Iterator[SensitiveSpan]:
    for match in _FULL.finditer(text):
        rest = match[2].split()
        if _is_full(match[1], rest[-1]) and rest[0].lower() not in NO_NAMES:
            yield finding(match, 0, "NAME")
    for match in _TURNED.finditer(text):
        if _is_known(match[2]) and match[1].lower() not in NO_NAMES and not _is_known(match[1]):
            yield finding(match, 0, "NAME")
    for pattern in (_TITLED, _NEAR):
        for match in pattern.finditer(text):
            if not _has_words(match[1]):
                yield finding(match, 1, "NAME")
    for match in _LABELLED.finditer(text):
        is_said = _is_known(match[2].split()[0]) or (match[1] and " " in match[2])  # else it may be a type, or a thing
        if is_said and not _has_words(match[2]):
            yield finding(match, 2, "NAME")
    for match in _CALLED.finditer(text):
        if _is_known(match[1].split()[0]) or (" " in match[1] and not _has_words(match[1])):
            yield finding(match, 1, "NAME")


def _is_full(first: str, last: str) -> bool:
    if last.lower() in NO_NAMES:
        return False
    return _is_known(first) or (first.lower() in FIRST_AND_WORDS and last.lower() in LAST)


def _is_known(name: str) -> bool:
    lower = name.lower()
    return lower in FIRST or lower.partition("-")[0] in FIRST


def _has_words(names: str) -> bool:
    return any(name.lower() in NO_NAMES for name in names.split())
