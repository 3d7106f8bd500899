"""Postal addresses: a street with its number, and what of postcode and town stands behind it."""

from collections.abc import Iterator
from typing import Final

from api.redaction.findings import SensitiveSpan, finding
from api.redaction.forms.table import SecretPattern

_WORD: Final = r"\p{Lu}[\p{L}'’.-]+"
_OF: Final = r"(?:(?:de|del|di|da|do|das|dos|du|des|la|las|le|les|los|della|delle)[ ]|de[ ]l['’]|d['’]|l['’])*"
_TOWN: Final = rf"{_WORD}(?:[ -](?:{_WORD}|am|an|der|la|de|do|da|das|sur|del|upon|on|en)){{0,3}}"
_UNIT: Final = (
    r"(?:,?[ ](?:Apt|Suite|Ste|Unit|Flat|Appt|Piso|Puerta|Piano|Appartamento|Interno"
    r"|Bus)\.?[ ]?#?[0-9A-Za-z]{1,5}[ ]?)"
)
_ON: Final = r"(?:,[ ]?|[ ]|\\n|,?\n)"  # between the lines of an address
_BRITISH: Final = r"[A-Z]{1,2}[0-9][A-Z0-9]?[ ]?[0-9][A-Z]{2}"
_POSTCODE: Final = (
    rf"(?:(?:[A-Z]{{1,2}}-)?[0-9]{{4,5}}(?:-[0-9]{{3,4}})?(?:[ ]?[A-Z]{{2}})?|[0-9]{{8}}"
    rf"|[0-9]{{2}}-[0-9]{{3}}|{_BRITISH})"
)
_PLACE: Final = (
    rf"(?:{_ON}{_POSTCODE},?[ ]{_TOWN}(?:[ ](?:\([A-Z]{{2}}\)|/[ ][A-Z]{{2}}))?"
    rf"|{_ON}{_TOWN},?[ ](?:[A-Z]{{2}}[ ])?{_POSTCODE})"
)
_BEHIND: Final = rf"{_UNIT}?{_PLACE}?"
_ENGLISH: Final = (
    rf"[0-9]{{1,5}}[A-Za-z]?[ ](?:[NSEW]\.?[ ]|North[ ]|South[ ]|East[ ]|West[ ])?(?:{_WORD}[ ]){{1,3}}"
    r"(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd|Court|Ct|Way|Place|Pl|Square|Sq|Terrace"
    r"|Crescent"
    r"|Close|Gardens|Grove|Hill|Mews|Park|Parkway|Pkwy|Highway|Hwy|Circle|Cir|Row|Walk|Trail|Plaza)\b\.?"
)
_RARE: Final = (  # ends of streets that are other words as well: what stands behind says that it is an address
    rf"(?:(?:Flat|Studio|Unit|Apartment)[ ][0-9]{{1,4}}[A-Za-z]?,?[ ])?(?:[0-9]{{1,6}}[A-Za-z]?[ ])?"
    rf"(?:{_WORD}[ ]){{1,4}}{_WORD}{_UNIT}?,?(?:[ ]|\n|\\n){_TOWN},?[ ]"
    rf"(?:[A-Z]{{2}}[ ](?:[0-9]{{5}}(?:-[0-9]{{4}})?|[A-Z][0-9][A-Z][ ]?[0-9][A-Z][0-9])|{_BRITISH})\b"
    r"|(?:Unit|PSC|CMR|USNS|USS|USCGC|USNV|P\.?O\.?)[ ](?:Box[ ])?[\w ]{1,30}(?:Box[ ][0-9]+)?,?[ ]"
    r"(?:DPO|FPO|APO)[ ]A[AEP][ ][0-9]{5}"
)
_ENDS: Final = (
    r"(?i:straße|strasse|str\.|weg|platz|allee|gasse|ring|damm|ufer|hof|graben|steig|straat|laan"
    r"|plein|gracht|kade|gade|vej|stræde|allé|gatan|vägen|gata|veien|utca)"
)
_GERMAN: Final = (
    rf"(?:\p{{Lu}}[\p{{L}}-]+{_ENDS}|(?:\p{{Lu}}[\p{{L}}-]+[ ]){{1,2}}(?:Straße|Strasse|Str\.|Weg|Platz|Allee"
    rf"|Gasse|Ring|Damm))"
    r"[ ][0-9]{1,4}(?:[ ]?[a-zA-Z])?(?:[-/][0-9]{1,4})?\b"
)
_BEFORE: Final = (
    r"[0-9]{1,4}(?:[ ]?(?:bis|ter))?,?[ ](?i:rue|avenue|boulevard|place|chemin|impasse|allée|quai|cours|route"
    r"|square|passage)"
    rf"[ ]{_OF}{_WORD}(?:[ -]{_WORD}){{0,3}}"
)
_KINDS: Final = (
    r"(?:Calle|C/|C\.|Avenida|Avda\.?|Plaza|Paseo|Camino|Carrer|Ronda|Glorieta|Rambla|Vial|Pasaje|Callejón"
    r"|Urbanización"
    r"|Cuesta|Via|Viale|Piazza|Corso|Largo|Vicolo|Strada|Contrada|Borgo|Rua|Travessa|Alameda|Praça|Estrada|Vereda"
    r"|ulica|ul\.|al\.|pl\.|os\.|aleja|Aleja)"
)
_AFTER: Final = (
    rf"{_KINDS}[ ]?{_OF}{_WORD}(?:[ ](?:(?:de|del|di|da|e|y)[ ])?{_WORD}){{0,3}}"
    r",?[ ](?:n[º°]?[ ]?|[Nn]r[ ]?)?[0-9]{1,4}(?:/[0-9]{1,4})?"
)
_PLAIN: Final = (  # without a number, but with a town
    r"(?i:rue|avenue|boulevard|place|chemin|impasse|allée|quai|route|calle|via|piazza|viale|rua|avenida|plaza|paseo)"
    rf"[ ]{_OF}{_WORD}(?:[ -]{_WORD}){{0,3}},(?:[ ]|\n)[0-9]{{4,5}}(?:-[0-9]{{3}})?[ ]{_TOWN}"
)
_TOLD: Final = (  # whatever the street is called: a number, a postcode and a town behind it
    rf"{_WORD}(?:[ ]{_OF}{_WORD}){{0,4}},?[ ][0-9]{{1,4}}[a-zA-Z]?{_UNIT}?,(?:[ ]{_TOWN},)?(?:[ ]|\n)"
    rf"(?:[0-9]{{4}}(?:[ ]?[A-Z]{{2}})?|[0-9]{{3}}[ ][0-9]{{2}}"
    rf"|[0-9]{{5}}(?:-?[0-9]{{3}})?),?[ ]{_TOWN}(?:[ ](?:\([A-Z]{{2}}\)|/[ ][A-Z]{{2}}))?"
)
_AUSTRALIAN: Final = (
    rf"(?:(?:Flat|Unit|Level|Suite"
    rf"|Apt\.?)[ ][0-9]{{1,4}}[A-Za-z]?[ /,]{{1,2}})?(?:[0-9]{{1,5}}[A-Za-z]?(?:/[0-9]{{1,4}})?,?[ ])?"
    rf"(?:{_WORD}[ ]){{1,4}}{_WORD}?,?[ ](?:{_TOWN},?[ ])?(?:NSW|VIC|QLD|WA|SA|TAS|ACT|NT),?[ ][0-9]{{4}}\b"
)
_INDIAN: Final = (
    rf"(?:(?:H\.?[ ]?No\.?|Plot|Flat|House"
    rf"|Door)(?:[ ]No\.?)?[ ]?)?[0-9]{{1,4}}(?:[/-][0-9A-Z]{{1,4}})?,?[ ](?:{_WORD}[ ,]{{1,2}}){{1,5}}"
    rf"{_TOWN}[ -]{{1,3}}[0-9]{{6}}\b"
)
_STREET: Final = SecretPattern(
    rf"(?:^|[^\w])((?:{_RARE}|{_AUSTRALIAN}|{_INDIAN}|{_TOLD}|(?:{_ENGLISH}|{_PLAIN}|{_GERMAN}|{_BEFORE}"
    rf"|{_AFTER}){_BEHIND}))"
)


def find_addresses(text: str) -> Iterator[SensitiveSpan]:
    return (finding(match, 1, "ADDRESS") for match in _STREET.finditer(text))
