"""The library that compiles grammars, and the bounds within which it does.

llguidance (https://github.com/guidance-ai/llguidance) counts its work: a grammar that is too large, or a regular
expression that is too hard, ends with an error and not with an engine that hangs. Of the bounds below, those of a step
hold for each mask, the others for compiling."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

import llguidance
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from core.errors import ConfigError, InvalidRequest
from core.events import Grammar

LIBRARY: Final = "llguidance"
VERSION: Final = str(llguidance.__version__)

MAX_GRAMMAR_BYTES: Final = 128 << 10
TOO_COMPLEX: Final = "grammar_too_complex"
_MOST_COMPILED: Final = 32  # each has up to some MiB of states
_MOST_OF_A_SCOPE: Final = 8  # so that nobody's take the place of all others'
_NOT_SAID: Final = "<non-verbose/>"  # in place of the library's reasons, where it gives up
_LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=500_000,  # 10 ms
    step_lexer_fuel=100_000,  # 7 ms
    step_max_items=20_000,  # 1 ms
    max_items_in_row=1_000,
    max_lexer_states=10_000,  # of 1 to 2 kB, for each answer under way
    max_grammar_size=200_000,
    verbose_errors=False,  # they are shown to clients, and logged
)

_Key = tuple[str | None, str, tuple[int, ...]]  # the scope within which it is known, the text, the stop tokens


class Grammars:
    """The compiled grammars of one model. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Read no more than is asked for: the tokenizer of `directory` with the first grammar."""
        self._directory = directory
        self._lock = threading.Lock()  # event loops take it, too: nothing is read or compiled under it
        self._reading = threading.Lock()
        self.prepare: Callable[[Grammar, tuple[int, ...], str | None], object] | None = None
        """Has a scope's grammar compiled where answers follow it, and returns once it is; None: no answers are made.

        It blocks. Whoever is about to ask for an answer calls it in a caller's own line, for it may take a second."""
        self._tokenizers: dict[tuple[int, ...], LLTokenizer] = {}
        self._compiled: OrderedDict[_Key, LLMatcher] = OrderedDict()

    @property
    def vocabulary(self) -> int:
        return _vocabulary_of(self._directory)

    def matcher(self, grammar: Grammar, stop_token_ids: tuple[int, ...], scope: str | None = None) -> LLMatcher:
        """Return a matcher at its beginning; a `scope`'s first of a grammar is compiled, which may take a second.

        That another scope has it compiled shows in no time. `stop_token_ids` are allowed where the grammar may end.
        Raises InvalidRequest for what is no grammar, or is beyond the bounds."""
        key = scope, grammar.text, stop_token_ids
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
        if found is None:
            found = self.compile(grammar, stop_token_ids)
            with self._lock:
                self._keep(key, found)
        return found.deep_copy()

    def has_compiled(self, grammar: Grammar, stop_token_ids: tuple[int, ...], scope: str | None = None) -> bool:
        with self._lock:
            return (scope, grammar.text, stop_token_ids) in self._compiled

    def _keep(self, key: _Key, compiled: LLMatcher) -> None:
        """Keep it in the place of its scope's oldest, or of the oldest of all."""
        self._compiled[key] = compiled
        own = [each for each in self._compiled if each[0] == key[0] and key[0] is not None]
        if len(own) > _MOST_OF_A_SCOPE:
            del self._compiled[own[0]]
        if len(self._compiled) > _MOST_COMPILED:
            self._compiled.popitem(last=False)

    def compile(self, grammar: Grammar, stop_token_ids: tuple[int, ...]) -> LLMatcher:
        """Compile a grammar, and keep nothing of it. Raises InvalidRequest as `matcher` does."""
        if len(grammar.text.encode()) > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(f"the grammar is larger than {MAX_GRAMMAR_BYTES} bytes", code=TOO_COMPLEX)
        made = LLMatcher(self.tokenizer(stop_token_ids), grammar.text, log_level=0, limits=_LIMITS)
        if made.is_error():
            raise InvalidRequest(_in_short(made.get_error()), code="invalid_grammar")
        made.compute_bitmask()  # what a first mask costs is of the bounds, too
        if made.is_error():
            raise InvalidRequest(_in_short(made.get_error()), code=TOO_COMPLEX)
        return made

    def tokenizer(self, stop_token_ids: tuple[int, ...]) -> LLTokenizer:
        with self._reading:
            if stop_token_ids not in self._tokenizers:
                self._tokenizers[stop_token_ids] = self._read_tokenizer(stop_token_ids)
            return self._tokenizers[stop_token_ids]

    def _read_tokenizer(self, stop_token_ids: tuple[int, ...]) -> LLTokenizer:
        text = (self._directory / "tokenizer.json").read_text(encoding="utf-8")
        return LLTokenizer(text, n_vocab=self.vocabulary, eos_token=list(stop_token_ids))


@lru_cache(maxsize=4)
def grammars_of(directory: Path) -> Grammars:
    """Return the grammars of the model in `directory`, which whoever asks for them in one process shares."""
    return Grammars(directory)


@lru_cache(maxsize=4)
def _vocabulary_of(directory: Path) -> int:
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return int((config.get("text_config") or config)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: vocab_size cannot be read ({error!r})") from error


def _in_short(error: str) -> str:
    """Return the library's words without the places in a grammar that its reader has not written."""
    line = " ".join(error.split("\n<state>")[0].split())
    if _NOT_SAID in line:
        return 'the grammar cannot be compiled: a part of it may stand for itself alone, as in {"$ref": "#"}'
    return line if len(line) <= 300 else f"{line[:300]}…"
