"""Checks that tell a right answer from a wrong one.

They are data, never code of the suite, except `Command`, which an operator has to allow."""

import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from core.errors import ConfigError
from core.text.json_schema import NoSchema, Schema
from core.text.patterns import Pattern


class CheckerEntry(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Exact(CheckerEntry):
    """The answer is this text, but for white space around it."""

    kind: Literal["exact"]
    text: str
    ignore_case: bool = False

    def holds(self, answer: str) -> bool:
        wanted, given = self.text.strip(), answer.strip()
        return given.casefold() == wanted.casefold() if self.ignore_case else given == wanted


class Contains(CheckerEntry):
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


class Regex(CheckerEntry):
    """A regular expression of RE2, in time linear in the answer."""

    kind: Literal["regex"]
    pattern: str
    whole: bool = False  # the whole answer, but for white space around it; else some part of it

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            Pattern(pattern)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return pattern

    @cached_property
    def _compiled(self) -> Pattern:
        return Pattern(self.pattern)

    def holds(self, answer: str) -> bool:
        return self._compiled.is_all_of(answer.strip()) if self.whole else self._compiled.is_in(answer)


class JsonSchema(CheckerEntry):
    """A schema (2020-12): the whole answer is JSON, but for white space around it, and valid.

    References outside the schema are not followed, and a value that takes more steps than the budget is not valid."""

    kind: Literal["json_schema"]
    of: dict[str, Any]

    @field_validator("of")
    @classmethod
    def _is_a_schema(cls, of: dict[str, Any]) -> dict[str, Any]:
        try:
            schema = Schema(of)
        except NoSchema as error:
            raise ValueError(f"no JSON schema: {error}") from error
        if schema.unfollowed:
            reasons = "; ".join(f"{why} ({place})" for place, why in schema.unfollowed.items())
            raise ValueError(f"no JSON schema: {reasons}")
        return of

    @cached_property
    def _schema(self) -> Schema:
        return Schema(self.of)

    def holds(self, answer: str) -> bool:
        try:
            return self._schema.admits(json.loads(answer, parse_constant=_refuse)) is True
        except (ValueError, RecursionError):  # no JSON, or nested beyond reason
            return False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


class Command(CheckerEntry):
    """A command that reads the answer from standard input; exit status 0 says that it is right.

    See `serving.evals.command`. A path that begins with ./ is relative to the case's directory."""

    kind: Literal["command"]
    argv: tuple[str, ...] = Field(min_length=1)
    timeout_s: float = Field(default=10.0, gt=0, le=600)

    def within(self, directory: Path) -> list[str]:
        return [str(directory / part) if part.startswith("./") else part for part in self.argv]


Checker = Annotated[Exact | Contains | Regex | JsonSchema | Command, Field(discriminator="kind")]
