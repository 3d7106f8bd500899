"""One model's renderer, from the files beside its weights."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.errors import ConfigError, InvalidRequest
from core.events import Grammar
from core.grammars.library import Grammars, grammars_of
from core.grammars.trials import Trials, trials_of
from core.grammars.wanted import WantedAnswer
from serving.rendering.families import Family, find_family
from serving.rendering.grammars import AnswerGrammars
from serving.rendering.infill import infill_marks
from serving.rendering.parser import PlainParser, StreamParser
from serving.rendering.template import ChatTemplate, read_template, reason_against_late_system, reason_against_tools
from serving.rendering.vocabulary import Vocabulary

_PLACEHOLDER = "\ue002answer\ue003"
_TAIL_TOKENS = 16  # of a prompt, in which the opening of thinking stands


class ModelRenderer:
    """Implements core.ports.Renderer. Thread-safe."""

    name = "chat-template"

    def __init__(
        self,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        stop_token_ids: Sequence[int],
        family: Family,
        grammars: Grammars,
        trials: Trials,
    ) -> None:
        self._vocabulary = vocabulary
        self.family = family
        self._template = template
        self._stop_token_ids = tuple(stop_token_ids)
        self.tokenizer_digest = ""
        self.tools_refused = reason_against_tools(template)
        self.late_system_refused = reason_against_late_system(template)
        self._infill = infill_marks(vocabulary)
        thinking = family.thinking
        marks = (thinking.opening, thinking.closing)
        self.has_thinking = family.form is None or all(_knows(vocabulary, template, mark) for mark in marks)
        stops = (vocabulary.token_bytes(token).decode("utf-8", "replace") for token in stop_token_ids)
        self._ends = tuple(filter(None, (*stops, *family.ends)))
        self._ends_alike = frozenset(map(vocabulary.id_of, family.ends)) if family.ends_are_one else frozenset()
        self._silent_ids = frozenset(stop_token_ids) - self._ends_alike
        self._grammars = AnswerGrammars(grammars, trials, vocabulary, self._stop_token_ids, family, template.source)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop_token_ids

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        with _of_field("messages"):
            return self._template.encode(self._template.text(messages, tools, prompt=True))

    def extend(
        self,
        token_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        calls: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """Continue a prompt and its answer by new messages; `calls` are the answer's.

        The text between an answer and the next place to speak is taken from a rendering with a placeholder answer: it
        begins with the mark that ends an answer, which the model has sampled itself unless it was cut off."""
        with _of_field("messages"):
            suffix = self._template.encode(self._text_after_answer(messages, calls), inner=True)
        if token_ids and suffix and self._is_ended(token_ids[-1], suffix[0]):
            suffix = suffix[1:]
        return (*token_ids, *suffix)

    @property
    def unnamed_end(self) -> str | None:
        """The mark that the template puts behind an answer, where no file says that the model ends its answers so.

        Such a model writes on behind its answer until it has no room left."""
        end = self.extend((), [{"role": "user", "content": "?"}])[0]
        mark = self._vocabulary.special.get(end)
        return None if end in self._stop_token_ids or mark in self.family.ends else mark

    def _is_ended(self, last: int, end: int) -> bool:
        return last == end or (last in self._ends_alike and end in self._ends_alike)

    def _text_after_answer(self, messages: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> str:
        answer: dict[str, Any] = {"role": "assistant", "content": _PLACEHOLDER}
        within_call = bool(calls) and self.family.shows_calls_to_results
        if within_call:
            answer = {"role": "assistant", "content": "", "tool_calls": _with_placeholder(calls)}
        text = self._template.text([{"role": "user", "content": "?"}, answer, *messages], (), prompt=True)
        after = text[text.index(_PLACEHOLDER) + len(_PLACEHOLDER) :]
        if not within_call:
            return after
        return after[min(place for end in self._ends if (place := after.find(end)) >= 0) :]

    def render_text(self, prompt: str, suffix: str | None) -> tuple[int, ...]:
        with _of_field("prompt"):
            return self._render_text(prompt, suffix)

    def _render_text(self, prompt: str, suffix: str | None) -> tuple[int, ...]:
        encode, plain, marks = self._template.encode, self._template.plain, self._infill
        written = None if suffix is not None or marks is None else marks.gap_in(prompt)
        if written is not None:
            prompt, suffix = written
        if suffix is None:
            return encode(plain(prompt))
        if marks is None:
            raise InvalidRequest("this model has no fill-in-the-middle form", param="suffix")
        begin, then, fill = (id for mark in marks if (id := self._vocabulary.id_of(mark)) is not None)
        return (begin, *encode(plain(prompt)), then, *encode(plain(suffix)), fill)

    def answer_tokens(self, text: str, *, is_first: bool) -> tuple[int, ...]:
        drops_space = is_first and self._vocabulary.drops_first_space
        return self._template.encode(self._template.plain(text), inner=not drops_space)

    def parser(self, *, tools: Sequence[Mapping[str, Any]] | None = None, after: Sequence[int] = ()) -> StreamParser:
        if tools is None:
            return StreamParser(self._vocabulary, self._stop_token_ids, PlainParser())
        parser = self.family.parser(tools, thinks=self.has_thinking, is_thinking=self._is_thinking(after))
        return StreamParser(self._vocabulary, self._silent_ids, parser)

    def _is_thinking(self, after: Sequence[int]) -> bool:
        """Return whether a prompt has opened the thinking."""
        tail = b"".join(map(self._vocabulary.token_bytes, after[-_TAIL_TOKENS:])).decode("utf-8", "replace")
        return tail.rstrip().endswith(self.family.thinking.opening.rstrip())

    @property
    def call_grammar_refused(self) -> str | None:
        return self._grammars.calls_refused

    def grammar(self, wanted: WantedAnswer, after: Sequence[int], scope: str | None = None) -> Grammar:
        return self._grammars.compiled(wanted, scope, thinks=self.has_thinking, is_thinking=self._is_thinking(after))

    def token_text(self, token_id: int) -> str:
        return self._vocabulary.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._vocabulary.token_bytes(token_id)


def _knows(vocabulary: Vocabulary, template: ChatTemplate, mark: str) -> bool:
    return mark.rstrip() in template.source or vocabulary.id_of(mark) is not None


def _with_placeholder(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return calls of the same names and ids, whose argument is the placeholder."""
    arguments = json.dumps({"answer": _PLACEHOLDER})
    return [{**call, "function": {"name": call["function"]["name"], "arguments": arguments}} for call in calls]


@contextmanager
def _of_field(name: str) -> Iterator[None]:
    """Blame the field that a text came from for what is wrong with the text."""
    try:
        yield
    except InvalidRequest as error:
        if error.param is not None:
            raise
        raise InvalidRequest(f"{name}: {error.message}", param=name, code=error.code) from None


def load_renderer(directory: Path, most_tokens: int | None = None, family: str = "auto") -> ModelRenderer:
    """Load a renderer from a Hugging Face directory, of the named family, or of the one that its files show.

    It reads tokenizer.json, tokenizer_config.json, the chat template, generation_config.json or config.json. For texts
    of more than `most_tokens` it raises InvalidRequest before making all of the tokens. Raises ConfigError naming the
    file at fault."""
    path = directory / "tokenizer_config.json"
    config = _read_json(path)
    vocabulary = Vocabulary(directory / "tokenizer.json", most_tokens)
    tokens = {name: text for name in ("bos_token", "eos_token", "pad_token") if (text := _token(path, name, config))}
    source = read_template(directory, config)
    found = find_family(source, family)
    try:
        template = ChatTemplate(source, tokens, vocabulary, found)
    except ConfigError as error:
        raise ConfigError(f"{directory}: {error}") from error
    stop_ids = _stop_ids(directory, tokens, vocabulary)
    renderer = ModelRenderer(vocabulary, template, stop_ids, found, grammars_of(directory), trials_of(directory))
    renderer.tokenizer_digest = _digest((directory / "tokenizer.json").read_bytes(), template.source)
    _check_continues(renderer, directory)
    return renderer


def _check_continues(renderer: ModelRenderer, directory: Path) -> None:
    """Refuse a template that drops or rewrites answers, which cannot be continued token for token."""
    try:
        continued = renderer.extend((), [{"role": "user", "content": "?"}])
    except (ValueError, InvalidRequest) as error:
        raise ConfigError(f"{directory}: the chat template does not show an answer as it was given") from error
    if not continued:
        raise ConfigError(f"{directory}: the chat template puts nothing after an answer")


def _digest(tokenizer: bytes, template: str) -> str:
    return hashlib.blake2b(tokenizer + b"\0" + template.encode(), digest_size=16).hexdigest()


def _stop_ids(directory: Path, tokens: Mapping[str, str], vocabulary: Vocabulary) -> list[int]:
    """Return every end that one of the files names: authors forget the end of a turn in one file or the other."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        named = _read_json(path).get("eos_token_id") if path.exists() else None
        ids = named if isinstance(named, list) else [] if named is None else [named]
        if not all(type(each) is int for each in ids):
            raise ConfigError(f"{path}: eos_token_id is {named!r}, no token's id")
        found += ids
    stop = vocabulary.id_of(tokens.get("eos_token", ""))
    found += [] if stop is None else [stop]
    if not found:
        raise ConfigError(f"{directory}: no end-of-sequence token is named")
    return list(dict.fromkeys(found))


def _token(path: Path, name: str, config: Mapping[str, Any]) -> str | None:
    """Return a token's text: configurations write it as text, or as an object around it. Raises ConfigError."""
    entry = config.get(name)
    text = entry.get("content") if isinstance(entry, dict) else entry
    if not isinstance(text, str | None):
        raise ConfigError(f"{path}: {name} is {entry!r}, no token's text")
    return text


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: no object")
    return content
