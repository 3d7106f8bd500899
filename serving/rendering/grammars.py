"""One model's grammars of answers, compiled, with the field of the request that is at fault where one cannot be."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from core.errors import InvalidRequest
from core.events import Grammar
from core.grammars.cost import check_cost
from core.grammars.library import Grammars
from core.grammars.trials import WAIT_S, Trials
from core.grammars.wanted import WantedAnswer
from serving.rendering.families import Family
from serving.rendering.formats.grammar import Thoughts, answer_grammar, schema_grammar
from serving.rendering.vocabulary import Vocabulary

NO_GRAMMAR: Final = "unsupported"


class AnswerGrammars:
    def __init__(
        self,
        grammars: Grammars,
        trials: Trials,
        vocabulary: Vocabulary,
        stop_token_ids: Sequence[int],
        family: Family,
        template: str,
    ) -> None:
        self._grammars, self._trials, self._vocabulary = grammars, trials, vocabulary
        self._stop_token_ids, self._family = tuple(stop_token_ids), family
        self._form = family.call_form(template)

    @property
    def calls_refused(self) -> str | None:
        return (
            None
            if self._form is not None
            else f"no grammar is known of the calls that {self._family.name} models write"
        )

    def compiled(self, wanted: WantedAnswer, scope: str | None, *, thinks: bool, is_thinking: bool) -> Grammar:
        """Return the grammar of the wanted answer, which compiles within the bounds.

        Raises InvalidRequest naming the field at fault, Overloaded where that cannot be found out now."""
        if self._family.form is None or (wanted.tools and self._form is None):
            raise InvalidRequest(f"{wanted.field}: {self._refused}", param=wanted.field, code=NO_GRAMMAR)
        until_s = time.monotonic() + WAIT_S
        for field, schema in _schemas(wanted):
            try:
                check_cost(schema)
            except InvalidRequest as error:
                raise _of_field(field, error) from error
        marks = self._family.thinking
        thoughts = Thoughts(marks.opening, marks.closing, is_thinking) if thinks else None
        grammar = Grammar(text=answer_grammar(wanted, self._form, thoughts, self._cut))
        try:
            self._trials.check(grammar, self._stop_token_ids, until_s, scope)
        except InvalidRequest as error:
            self._blame(wanted, until_s, scope)
            raise _of_field(wanted.field, error) from error
        if self._grammars.prepare is not None:  # a second of compiling is for the caller's own line, wherever it is
            self._grammars.prepare(grammar, self._stop_token_ids, scope)
        return grammar

    @property
    def _refused(self) -> str:
        return self.calls_refused or f"no grammar is known of the answers that {self._family.name} models write"

    def _blame(self, wanted: WantedAnswer, until_s: float, scope: str | None) -> None:
        """Raise InvalidRequest naming the first schema that no grammar can be made of by itself, if there is time."""
        for field, schema in _schemas(wanted):
            if time.monotonic() >= until_s:
                return
            try:
                self._trials.check(Grammar(text=schema_grammar(schema)), self._stop_token_ids, until_s, scope)
            except InvalidRequest as error:
                raise _of_field(field, error) from error

    def _cut(self, text: str) -> list[int | str]:
        """Cut a text into the special tokens in it, and what is between them."""
        parts: list[int | str] = []
        while text:
            found = [(text.find(mark), -len(mark), mark) for mark in self._special_ids if mark in text]
            place, _, mark = min(found, default=(len(text), 0, ""))
            parts += [text[:place]] if place else []
            parts += [self._special_ids[mark]] if mark else []
            text = text[place + len(mark) :]
        return parts

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        tokenizer = self._grammars.tokenizer(self._stop_token_ids)
        return {text: token for token, text in self._vocabulary.added.items() if tokenizer.is_special_token(token)}


def _schemas(wanted: WantedAnswer) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the schemas, each with the field of the request that it comes from."""
    schemas: list[tuple[str, Mapping[str, Any]]] = [(tool.field, tool.schema) for tool in wanted.tools]
    if wanted.schema is not None:
        schemas.append((wanted.field, wanted.schema))
    return schemas


def _of_field(field: str, error: InvalidRequest) -> InvalidRequest:
    return InvalidRequest(f"{field}: {error.message}", param=field, code=error.code)
