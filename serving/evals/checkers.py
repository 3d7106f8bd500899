"""What tells a right answer from a wrong one: data, never code of the suite, save for `Command`, which an operator has
to allow.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012


class Entry(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Exact(Entry):
    """The answer is this text, but for white space around it."""

    kind: Literal["exact"]
    text: str
    ignore_case: bool = False

    def holds(self, answer: str) -> bool:
        wanted, given = self.text.strip(), answer.strip()
        return given.casefold() == wanted.casefold() if self.ignore_case else given == wanted


class Contains(Entry):
    """All of these stand in the answer, and none of those."""

    kind: Literal["contains"]
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    ignore_case: bool = False

    @model_validator(mode="after")
    def _asks_for_something(self) -> "Contains":
        texts = (*self.all, *self.none)
        if not texts:
            raise ValueError("all, none: want one of them, else every answer would do")
        if "" in texts:
            raise ValueError("all, none: an empty text stands in every answer")
        return self

    def holds(self, answer: str) -> bool:
        def stands(text: str) -> bool:
            return text.casefold() in answer.casefold() if self.ignore_case else text in answer

        return all(map(stands, self.all)) and not any(map(stands, self.none))


class Regex(Entry):
    """Python's. The pattern is the suite's own: one that backtracks without end would hold up the run."""

    kind: Literal["regex"]
    pattern: str
    whole: bool = False  # the whole answer, but for white space around it; else some part of it

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        return pattern

    def holds(self, answer: str) -> bool:
        found = re.fullmatch(self.pattern, answer.strip()) if self.whole else re.search(self.pattern, answer)
        return found is not None


class JsonSchema(Entry):
    """The whole answer is JSON, but for white space around it, and valid (2020-12). References lead nowhere outside."""

    kind: Literal["json_schema"]
    of: dict[str, Any]

    @field_validator("of")
    @classmethod
    def _is_a_schema(cls, of: dict[str, Any]) -> dict[str, Any]:
        try:
            Draft202012Validator.check_schema(of)
        except SchemaError as error:
            raise ValueError(f"no JSON schema: {error.json_path}: {error.message}") from error
        resolver = Registry().resolver_with_root(DRAFT202012.create_resource(of))
        for reference in _references(of):
            try:
                resolver.lookup(reference)
            except Unresolvable as error:
                raise ValueError(f"no JSON schema: {reference} is not in it") from error
        return of

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator(self.of, registry=Registry())

    def holds(self, answer: str) -> bool:
        try:
            return self._validator.is_valid(json.loads(answer, parse_constant=_refuse))
        except (ValueError, RecursionError, OverflowError):  # no JSON; or nested, or a number, beyond reason
            return False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        reference = part.get("$ref")
        if isinstance(reference, str):
            yield reference
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _references(inner)


class Command(Entry):
    """The answer goes to its standard input; exit status 0 says that it is right (see `serving.evals.command`). What
    begins with ./ is of the case's directory."""

    kind: Literal["command"]
    argv: tuple[str, ...] = Field(min_length=1)
    timeout_s: float = Field(default=10.0, gt=0, le=600)

    def within(self, directory: Path) -> list[str]:
        return [str(directory / part) if part.startswith("./") else part for part in self.argv]


Checker = Annotated[Exact | Contains | Regex | JsonSchema | Command, Field(discriminator="kind")]
