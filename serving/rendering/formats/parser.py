"""The reading of an answer's text as it arrives, into thinking, calls and content.

Text that may still become a mark, or a call, is held back. What never becomes a whole, valid call is content, with its
marks; white space after a call, and around thinking, is not."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from serving.rendering.formats.calls import NoCall, ParsedCall, Schemas


@dataclass
class Words:
    """The parts that newly arrived text adds to an answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)
    call_ranges: list[tuple[int, int]] = field(default_factory=list)
    """The characters of the answer that each call was read from, with its marks."""
    broken_calls: int = 0
    thinking_ended: bool = False


class FormatParser(Protocol):
    """One answer."""

    def read(self, text: str, *, last: bool) -> Words:
        """Add text; with the `last` nothing is held back any more."""
        ...


@dataclass(frozen=True)
class Thinking:
    """The marks between which a model thinks, at the beginning of its answer."""

    opening: str
    closing: str


@dataclass(frozen=True)
class CallBlock:
    """One or more calls between two marks."""

    opening: str
    closing: str | None
    """None: the block goes on to the next one, or to the end of the answer."""
    read: Callable[[str, Schemas], list[ParsedCall]]
    """Returns the calls of the text between the marks. Raises NoCall."""
    only_first: bool = False
    """Only at the beginning of an answer, and its opening is part of what is read."""


@dataclass(frozen=True)
class BlockFormat:
    """A form of answers in which calls stand in blocks."""

    blocks: tuple[CallBlock, ...] = ()
    around: tuple[str, ...] = ()
    """Marks around several blocks, which say nothing more."""


class BlockParser:
    def __init__(
        self, form: BlockFormat, tools: Schemas, thinking: Thinking | None, *, is_thinking: bool = False
    ) -> None:
        """Begin an answer. Without tools nothing is a call; `is_thinking`: the prompt has opened the thinking."""
        self._blocks = form.blocks if tools else ()
        self._around = form.around if tools else ()
        self._tools = tools
        self._thinking = thinking
        self._held = ""
        self._state: Literal["start", "thinking", "content", "block"] = "start" if thinking else "content"
        if is_thinking:
            self._state = "thinking"
        self._block: CallBlock | None = None
        self._skips_space = is_thinking
        self._is_first = True  # no content yet but white space, and no call
        self._characters = 0  # of the answer so far; those that are held are the last of them

    def read(self, text: str, *, last: bool) -> Words:
        self._held += text
        self._characters += len(text)
        words = Words()
        while self._step(words, last):
            pass
        return words

    def _step(self, words: Words, last: bool) -> bool:
        """Go on by one part of the answer; False when more text is needed, or there is none."""
        match self._state:
            case "start":
                return self._start(last)
            case "thinking":
                return self._think(words, last)
            case "content":
                return self._say(words, last)
            case "block":
                return self._call(words, last)

    def _start(self, last: bool) -> bool:
        assert self._thinking is not None
        opening, shown = self._thinking.opening, self._held.lstrip()
        if shown.startswith(opening):
            self._held, self._state, self._skips_space = shown[len(opening) :], "thinking", True
            return True
        if opening.startswith(shown) and not last:
            return False
        self._state = "content"
        return True

    def _think(self, words: Words, last: bool) -> bool:
        assert self._thinking is not None
        self._skip_space()
        closing = self._thinking.closing
        end = self._held.find(closing)
        if end >= 0:
            words.reasoning += self._held[:end].rstrip()
            words.thinking_ended = True
            self._held, self._state, self._skips_space = self._held[end + len(closing) :], "content", True
            return True
        kept = 0 if last else overlap(self._held, closing)
        thought = self._held[: len(self._held) - kept].rstrip()
        words.reasoning += thought
        self._held = "" if last else self._held[len(thought) :]
        self._skips_space = self._skips_space and not thought
        return False

    def _say(self, words: Words, last: bool) -> bool:
        self._skip_space()
        place, mark = self._next_mark()
        if place < 0:
            kept = 0 if last else max((overlap(self._held, each) for each in self._marks()), default=0)
            self._release(words, len(self._held) - kept)
            return False
        self._release(words, place)
        if mark in self._around:
            self._held, self._skips_space = self._held[len(mark) :], True
        else:
            self._block = next(block for block in self._blocks if block.opening == mark)
            self._state = "block"
        return True

    def _call(self, words: Words, last: bool) -> bool:
        block = self._block
        assert block is not None
        begin = 0 if block.only_first else len(block.opening)
        end, after = self._end_of(block, last)
        if end < 0:
            if last:
                words.broken_calls += 1
                self._release(words, len(self._held))
            return False
        try:
            calls = block.read(self._held[begin:end], self._tools)
            words.calls += calls
            words.call_ranges += _cut(self._characters - len(self._held), begin, after, calls)
        except NoCall as error:
            words.broken_calls += error.begun
            self._release(words, after)
        else:
            self._held, self._skips_space = self._held[after:], True
        self._state, self._is_first = "content", False
        return True

    def _end_of(self, block: CallBlock, last: bool) -> tuple[int, int]:
        """Return where the block's text ends, and where what follows begins; -1 while it has no end."""
        if block.closing is not None:
            end = self._held.find(block.closing)
            return end, end + len(block.closing)
        end = -1 if block.only_first else self._held.find(block.opening, len(block.opening))
        if end < 0 and last:
            end = len(self._held)
        return end, end

    def _marks(self) -> Iterable[str]:
        yield from self._around
        yield from (block.opening for block in self._blocks if self._is_first or not block.only_first)

    def _next_mark(self) -> tuple[int, str]:
        """Return the place of the next mark, and the mark; -1 where there is none."""
        found = [(self._held.find(mark), mark) for mark in self._marks()]
        firsts = {block.opening for block in self._blocks if block.only_first}
        found = [
            (place, mark) for place, mark in found if place >= 0 and not (mark in firsts and self._held[:place].strip())
        ]
        return min(found, default=(-1, ""))

    def _skip_space(self) -> None:
        if self._skips_space:
            self._held = self._held.lstrip()

    def _release(self, words: Words, count: int) -> None:
        """Move the first held characters to the content."""
        text, self._held = self._held[:count], self._held[count:]
        words.content += text
        self._skips_space = self._skips_space and not text
        self._is_first = self._is_first and not text.strip()


def _cut(start: int, begin: int, after: int, calls: Sequence[ParsedCall]) -> Iterator[tuple[int, int]]:
    """Share the characters of a block among its calls: the first has its opening, and the last its closing.

    `start`: of the block in the answer; `begin` and `after`: of what its calls were read from, and of what follows."""
    place = start
    for number, call in enumerate(calls, 1):
        is_last = call.end is None or number == len(calls)
        end = start + after if is_last else start + begin + (call.end or 0)
        yield place, end
        place = end


def overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `mark`."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
