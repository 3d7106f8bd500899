"""Prompts with words of users in them: of what the teacher thinks an answer over (`learner.objective.words`).

The words stand at the end of the request, in front of the token that ends it, and all that the model saw stays as it
was. They are anybody's words: they are encoded as plain text, in which no token that the template uses is known."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from core.errors import ConfigError
from core.events import Completion, Hint, Reward
from core.ids import Namespace
from core.model.files import LOCAL
from core.settings import WordsSettings
from learner.sequences.scored import ScoredTurn

_PROBE: Final = "onward"


class HintedPrompts(Protocol):
    """What puts words into a model's prompts."""

    def encode(self, words: str) -> tuple[int, ...] | None:
        """Return the words' tokens, none of which means anything but its text; None when that cannot be had."""

    def place_in(self, prompt_token_ids: Sequence[int]) -> int | None:
        """Return where the request ends, with which the prompt does; None when it has no such place."""

    def require(self) -> None:
        """Raise ConfigError, naming the setting, when no prompt has such a place."""


class TemplatePrompts:
    """Words in prompts that a model's chat template made. Read at first use; thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def encode(self, words: str) -> tuple[int, ...] | None:
        ids = tuple(self._plain.encode(words, add_special_tokens=False).ids)
        return None if self._added.intersection(ids) else ids

    def place_in(self, prompt_token_ids: Sequence[int]) -> int | None:
        token, times = self._end
        place = len(prompt_token_ids)
        for _ in range(times):
            place = next((at for at in range(place - 1, -1, -1) if prompt_token_ids[at] == token), -1)
            if place < 0:
                return None
        return place

    def require(self) -> None:
        self._end  # noqa: B018

    @cached_property
    def _file(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self._directory / "tokenizer.json").read_text(encoding="utf-8"))
        return found

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(Tokenizer.from_str(json.dumps(self._file)).get_added_tokens_decoder())

    @cached_property
    def _plain(self) -> Tokenizer:
        return Tokenizer.from_str(json.dumps({**self._file, "added_tokens": [], "post_processor": None}))

    @cached_property
    def _end(self) -> tuple[int, int]:
        """Return the first token of the template's own after a request, and how often it follows up to the answer."""
        tokenizer = AutoTokenizer.from_pretrained(self._directory, **LOCAL)
        messages = [{"role": "user", "content": _PROBE}]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        ids = tokenizer.encode(text.rpartition(_PROBE)[2], add_special_tokens=False)
        own = next((token for token in ids if token in self._added), None)
        if own is None:
            raise ConfigError(
                f"learner.words: the chat template in {self._directory} does not mark the end of a request"
            )
        return own, ids.count(own)


@lru_cache(maxsize=4)
def hinted_prompts(directory: Path) -> TemplatePrompts:
    return TemplatePrompts(directory)


@dataclass(frozen=True)
class Hinted:
    """A turn of a batch as the teacher gets it: its prompt with the words in it, and the output tokens they are of."""

    prompt_token_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    said: tuple[int, ...]  # the words' own tokens


@dataclass
class Heard:
    """What was said in a batch: by index of the turn, and why words of others do not train."""

    turns: dict[int, Hinted] = field(default_factory=dict)
    unused: dict[int, str] = field(default_factory=dict)
    left_out: int = 0  # hints, for their length


def hear(
    batch: Sequence[ScoredTurn], settings: WordsSettings, prompts: HintedPrompts, context_length: int | None
) -> Heard:
    """Collect the words of a batch that have not trained yet."""
    heard = Heard()
    for index, scored in enumerate(batch):
        hints = new_hints(scored)
        if not hints:
            continue
        found = _hinted(scored.turn, hints, settings, prompts, context_length, heard)
        if isinstance(found, Hinted):
            heard.turns[index] = found
        else:
            heard.unused[index] = found
    return heard


def do_train(settings: WordsSettings, namespace: Namespace) -> bool:
    """Return whether words train that are said in a namespace."""
    return settings.weight > 0 and (settings.namespaces is None or namespace in settings.namespaces)


def heeded(reward: Reward, settings: WordsSettings) -> Reward:
    """Return a reward without words that do not train: nothing of them is to be kept."""
    return reward if do_train(settings, reward.namespace) else replace(reward, hints=())


def new_hints(scored: ScoredTurn) -> tuple[Hint, ...]:
    """Return the hints of the reward that did not train with an earlier revision of it."""
    known = scored.applied.hints if scored.applied is not None else ()
    return tuple(hint for hint in scored.reward.hints if hint.outcome_id not in known)


def are_hints_sound(hints: Sequence[Hint], turn: Completion) -> bool:
    """Return whether all hints are of tokens of the turn."""
    return all(0 <= hint.start < hint.end <= len(turn.token_ids) for hint in hints)


def _hinted(
    turn: Completion,
    hints: Sequence[Hint],
    settings: WordsSettings,
    prompts: HintedPrompts,
    context_length: int | None,
    heard: Heard,
) -> Hinted | str:
    if not do_train(settings, turn.namespace):
        return "not_wanted"
    if prompts.place_in(turn.prompt_token_ids) is None:
        return "no_place"
    fitting = _fitting(hints, settings, prompts)
    heard.left_out += len(hints) - len(fitting)
    if not fitting:
        return "too_long"
    said = prompts.encode(_worded(fitting, settings))
    assert said is not None, "it was encoded a moment ago"
    prompt = with_words(turn, said, prompts, context_length)
    if prompt is None:
        return "over_context"
    return Hinted(prompt, tuple((hint.start, hint.end) for hint in fitting), said)


def with_words(
    turn: Completion, said: tuple[int, ...], prompts: HintedPrompts, context_length: int | None
) -> tuple[int, ...] | None:
    """Return a turn's prompt with the tokens of words in it; None where it has no place for them, or no room."""
    place = prompts.place_in(turn.prompt_token_ids)
    length = len(turn.prompt_token_ids) + len(said) + len(turn.token_ids)
    if place is None or (context_length is not None and length > context_length):
        return None
    return (*turn.prompt_token_ids[:place], *said, *turn.prompt_token_ids[place:])


def _fitting(hints: Sequence[Hint], settings: WordsSettings, prompts: HintedPrompts) -> list[Hint]:
    """Return the newest hints that are together no longer than they may be, the oldest of these first."""
    fitting: list[Hint] = []
    for hint in reversed(hints):
        ids = prompts.encode(_worded([hint, *fitting], settings))
        if ids is not None and len(ids) <= settings.longest_tokens:
            fitting.insert(0, hint)
    return fitting


def _worded(hints: Sequence[Hint], settings: WordsSettings) -> str:
    return settings.worded("\n".join(dict.fromkeys(hint.text for hint in hints)))
