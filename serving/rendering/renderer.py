"""One model's renderer, from the files beside its weights."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.errors import ConfigError, InvalidRequest
from serving.rendering.template import ChatTemplate, read_template
from serving.rendering.tool_calls import StreamParser
from serving.rendering.vocabulary import Vocabulary

_FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_PLACEHOLDER = "\ue002answer\ue003"


class ModelRenderer:
    """Implements core.ports.Renderer. Thread-safe."""

    name = "chat-template"

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate, stop_token_ids: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._stop_token_ids = tuple(stop_token_ids)
        self.tokenizer_digest = ""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop_token_ids

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        with _of_field("messages"):
            return self._template.encode(self._template.text(messages, tools, prompt=True))

    def extend(self, token_ids: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Continue a prompt and its answer by new messages.

        The text between an answer and the next place to speak is taken from a rendering with a placeholder answer: it
        begins with the mark that ends an answer, which the model has sampled itself unless it was cut off."""
        before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PLACEHOLDER}]
        with _of_field("messages"):
            text = self._template.text([*before, *messages], (), prompt=True)
            suffix = self._template.encode(text[text.index(_PLACEHOLDER) + len(_PLACEHOLDER) :])
        if token_ids and suffix and token_ids[-1] == suffix[0]:
            suffix = suffix[1:]
        return (*token_ids, *suffix)

    def render_text(self, prompt: str, suffix: str | None) -> tuple[int, ...]:
        with _of_field("prompt"):
            return self._render_text(prompt, suffix)

    def _render_text(self, prompt: str, suffix: str | None) -> tuple[int, ...]:
        encode = self._template.encode
        if suffix is None:
            return encode(self._template.plain(prompt))
        marks = [self._vocabulary.id_of(mark) for mark in _FIM]
        if None in marks:
            raise InvalidRequest("this model has no fill-in-the-middle form", param="suffix")
        begin, then, middle = (mark for mark in marks if mark is not None)
        plain = self._template.plain
        return (begin, *encode(plain(prompt)), then, *encode(plain(suffix)), middle)

    def parser(self, *, tools: bool) -> StreamParser:
        return StreamParser(self._vocabulary, frozenset(self._stop_token_ids), tools=tools)

    def token_text(self, token_id: int) -> str:
        return self._vocabulary.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._vocabulary.token_bytes(token_id)


@contextmanager
def _of_field(name: str) -> Iterator[None]:
    """Blame the field that a text came from for what is wrong with the text."""
    try:
        yield
    except InvalidRequest as error:
        if error.param is not None:
            raise
        raise InvalidRequest(f"{name}: {error.message}", param=name, code=error.code) from None


def load_renderer(directory: Path, most_tokens: int | None = None) -> ModelRenderer:
    """Load a renderer from a Hugging Face directory.

    It reads tokenizer.json, tokenizer_config.json, the chat template, generation_config.json or config.json. For texts
    of more than `most_tokens` it raises InvalidRequest before making all of the tokens. Raises ConfigError naming the
    file at fault."""
    config = _read_json(directory / "tokenizer_config.json")
    vocabulary = Vocabulary(directory / "tokenizer.json", most_tokens)
    tokens = {name: text for name in ("bos_token", "eos_token", "pad_token") if (text := _token(config.get(name)))}
    source = read_template(directory, config)
    try:
        template = ChatTemplate(source, tokens, vocabulary)
    except ConfigError as error:
        raise ConfigError(f"{directory}: {error}") from error
    renderer = ModelRenderer(vocabulary, template, _stop_ids(directory, tokens, vocabulary))
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
    for name in ("generation_config.json", "config.json"):
        if (directory / name).exists():
            found = _read_json(directory / name).get("eos_token_id")
            if found is not None:
                return list(found) if isinstance(found, list) else [int(found)]
    stop = vocabulary.id_of(tokens.get("eos_token", ""))
    if stop is None:
        raise ConfigError(f"{directory}: no end-of-sequence token is named")
    return [stop]


def _token(entry: Any) -> str | None:
    """Return a token's text: configurations write it as text, or as an object around it."""
    return entry.get("content") if isinstance(entry, dict) else entry


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return content
