"""Prompts with a hint: what somebody said of an answer is put at the end of the message before it.

That is before the last token that ends a message, or at the beginning if the prompt has no such token."""

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer, GenerationConfig

from core.events import Completion, Hint
from core.model.files import LOCAL

_SAID: Final = "\n\n[Of the answer that follows it will be said: {}]\n"
_QUOTED: Final = 8  # tokens of an answer: who has read so many in a row copies, and does not judge


class Hinting:
    """Puts hints into the prompts of one model."""

    def __init__(self, directory: Path) -> None:
        """Read no more than is asked for: the tokenizer with the first hint."""
        self._directory = directory

    def prompt(self, turn: Completion, hint: Hint) -> tuple[int, ...]:
        """Return the prompt with the hint. Control tokens in its words are characters."""
        words, ids = self._encoded(_SAID.format(hint.text)), turn.prompt_token_ids
        ends = [place for place, token in enumerate(ids) if token in self.stop_token_ids]
        place = ends[-1] if ends else 0
        return (*ids[:place], *words, *ids[place:])

    def quotes(self, turn: Completion, hint: Hint) -> bool:
        """Return whether the hint repeats what it is about, so that whoever hears it knows the answer by heart."""
        said, words = turn.token_ids[hint.start : hint.end], _plain(hint.text)
        length = min(_QUOTED, len(said))
        runs = (said[start : start + length] for start in range(len(said) - length + 1))
        texts = (_plain(self._tokenizer.decode(run, skip_special_tokens=True)) for run in runs)
        return any(text and text in words for text in texts)

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """The tokens that end a message."""
        told = GenerationConfig.from_pretrained(self._directory, **LOCAL).eos_token_id
        return frozenset(told if isinstance(told, list) else [told]) | {self._tokenizer.eos_token_id}

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    @cached_property
    def _tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._directory, **LOCAL)


def _plain(text: str) -> str:
    return " ".join(text.split())


@lru_cache(maxsize=4)
def hinting_of(directory: Path) -> Hinting:
    return Hinting(directory)
