"""One model's grammars of answers, compiled, with the field of the request that is at fault where one cannot be."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from core.errors import InvalidRequest
from core.events import Grammar
from core.grammars.library import Grammars
from core.grammars.wanted import WantedAnswer
from serving.rendering.families import Family
from serving.rendering.formats.grammar import Thoughts, answer_grammar, schema_grammar
from serving.rendering.vocabulary import Vocabulary

NO_GRAMMAR: Final = "unsupported"


class AnswerGrammars:
    def __init__(
        self, grammars: Grammars, vocabulary: Vocabulary, stop_token_ids: Sequence[int], family: Family, template: str
    ) -> None:
        self._grammars, self._vocabulary = grammars, vocabulary
        self._stop_token_ids, self._family = tuple(stop_token_ids), family
        self._form = family.call_form(template)

    @property
    def calls_refused(self) -> str | None:
        return (
            None
            if self._form is not None
            else f"no grammar is known of the calls that {self._family.name} models write"
        )

    def compiled(self, wanted: WantedAnswer, *, thinks: bool, is_thinking: bool) -> Grammar:
        """Return the grammar of the wanted answer. Raises InvalidRequest naming the field at fault."""
        if self._family.form is None or (wanted.tools and self._form is None):
            raise InvalidRequest(f"{wanted.field}: {self._refused}", param=wanted.field, code=NO_GRAMMAR)
        marks = self._family.thinking
        thoughts = Thoughts(marks.opening, marks.closing, is_thinking) if thinks else None
        grammar = Grammar(text=answer_grammar(wanted, self._form, thoughts, self._cut))
        try:
            self._grammars.matcher(grammar, self._stop_token_ids)
        except InvalidRequest as error:
            self._blame(wanted)
            raise InvalidRequest(f"{wanted.field}: {error.message}", param=wanted.field, code=error.code) from error
        return grammar

    @property
    def _refused(self) -> str:
        return self.calls_refused or f"no grammar is known of the answers that {self._family.name} models write"

    def _blame(self, wanted: WantedAnswer) -> None:
        """Raise InvalidRequest naming the first schema that no grammar can be made of by itself."""
        schemas: list[tuple[str, Mapping[str, Any]]] = [(tool.field, tool.schema) for tool in wanted.tools]
        if wanted.schema is not None:
            schemas.append((wanted.field, wanted.schema))
        for field, schema in schemas:
            try:
                self._grammars.matcher(Grammar(text=schema_grammar(schema)), self._stop_token_ids)
            except InvalidRequest as error:
                raise InvalidRequest(f"{field}: {error.message}", param=field, code=error.code) from error

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
