"""The public table of secrets' forms: a form is sought where one of its keywords stands, and weighed by its rules."""

import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from api.redaction.findings import SensitiveSpan, finding

_TABLE: Final = Path(__file__).with_name("gitleaks.toml")
_OWN: Final = Path(__file__).with_name("own.toml")
_MEMORY_BYTES: Final = 64 << 20  # of the automaton of all keywords: with less it would fall back to a slower one


_TERMINATOR: Final = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
_END: Final = r"(?:[^\w-]|$)"  # text has more than quotes behind a secret: full stops, brackets, commas


class Allowed:
    """What looks like a secret and is none: by patterns of the secret, the match or its line, or by words in it."""

    def __init__(self, rules: dict[str, Any]) -> None:
        self._target = rules.get("regexTarget", "secret")
        self._patterns = [SecretPattern(source) for source in rules.get("regexes", ())]
        self._words = [word.lower() for word in rules.get("stopwords", ())]

    def allows(self, text: str, match: Any, secret: str) -> bool:
        target = secret if self._target == "secret" else match[0] if self._target == "match" else _line(text, match)
        if any(pattern.is_in(target) for pattern in self._patterns):
            return True
        lower = secret.lower()
        return any(word in lower for word in self._words)


class Form:
    """One form of secrets. `group` is the part of a match that is the secret; 0: the first that took part in it."""

    def __init__(self, rule: dict[str, Any]) -> None:
        self.name: str = rule["id"]
        self.keywords = [keyword.lower() for keyword in rule.get("keywords", ())]
        self._pattern = SecretPattern(rule["regex"].replace(_TERMINATOR, _END))
        self._group: int = rule.get("secretGroup", 0)
        self._least_bits: float = rule.get("entropy", 0.0)
        # Paths are not known here: what is allowed by a path and something else is not allowed.
        given = (
            each for each in rule.get("allowlists", ()) if not (each.get("condition") == "AND" and "paths" in each)
        )
        self._allowed = [Allowed(each) for each in given]

    def find(self, text: str) -> Iterator[SensitiveSpan]:
        for match in self._pattern.finditer(text):
            group = self._group or next((n for n in range(1, len(match.groups()) + 1) if match[n]), 0)
            secret = match[group]
            if not secret or bits(secret) <= self._least_bits:
                continue
            if not any(each.allows(text, match, secret) for each in self._allowed):
                yield finding(match, group, "SECRET")


class Table:
    """All forms."""

    def __init__(self, file: Path = _TABLE) -> None:
        table, own = (tomllib.loads(each.read_text(encoding="utf-8")) for each in (file, _OWN))
        self._allowed = Allowed(table["allowlist"])
        rules = [*table["rules"], *own["rules"]]
        self._forms = [Form(rule) for rule in rules if "regex" in rule and rule["id"] not in _LEFT_OUT]
        keywords = sorted({keyword for form in self._forms for keyword in form.keywords})
        self._by_keyword = [[form for form in self._forms if keyword in form.keywords] for keyword in keywords]
        self._keywords = literals(keywords)

    def find(self, text: str) -> Iterator[SensitiveSpan]:
        forms = {form.name: form for place in self._keywords.Match(text) or () for form in self._by_keyword[place]}
        for form in forms.values():
            for found in form.find(text):
                if not self._allowed.allows(text, None, text[found.start : found.end]):
                    yield found


_LEFT_OUT: Final = frozenset(
    {
        "generic-api-key",  # `assigned.py` reads assignments, with weights for code
        "kubernetes-secret-yaml",  # of files alone
        "hashicorp-tf-password",
    }
)


class SecretPattern:
    """A pattern of RE2. It is compiled when it is first used: all of them take a quarter of a second."""

    def __init__(self, source: str) -> None:
        self._source = source

    @cached_property
    def _compiled(self) -> Any:
        options = re2.Options()
        options.log_errors = False
        options.max_mem = _MEMORY_BYTES
        return re2.compile(self._source, options)

    def finditer(self, text: str) -> Iterator[Any]:
        found: Iterator[Any] = self._compiled.finditer(text)
        return found

    def is_in(self, text: str) -> bool:
        return self._compiled.search(text) is not None

    def is_all_of(self, text: str) -> bool:
        return self._compiled.fullmatch(text) is not None


def literals(words: Sequence[str]) -> Any:
    """Return the set of these words, in either case, whose `Match` says which of them a text has."""
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.case_sensitive = False
    found = re2.Set.SearchSet(options)
    for word in words:
        found.Add(re2.escape(word))
    found.Compile()
    return found


def bits(text: str) -> float:
    """Return the entropy of a text's characters, in bits each."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


def _line(text: str, match: Any) -> str:
    start, end = match.span()
    return text[text.rfind("\n", 0, start) + 1 : text.find("\n", end) if "\n" in text[end:] else len(text)]
