"""Filling a gap: the marks between which a model was trained to see what stands before and behind it.

Qwen2.5-Coder and CodeGemma (arXiv 2409.12186, 2406.11409), StarCoder2 and Granite (arXiv 2402.19173), and
DeepSeek-Coder (arXiv 2401.14196) all see `begin` prefix `then` suffix `fill`, each with marks of its own."""

from typing import NamedTuple

from serving.rendering.vocabulary import Vocabulary


class InfillMarks(NamedTuple):
    begin: str
    then: str
    fill: str

    def gap_in(self, prompt: str) -> tuple[str, str] | None:
        """Return prefix and suffix of a prompt that its client wrote with the marks; None where it did not."""
        if not (prompt.startswith(self.begin) and prompt.endswith(self.fill)):
            return None
        prefix, found, suffix = prompt[len(self.begin) : -len(self.fill)].partition(self.then)
        return (prefix, suffix) if found and not any(mark in prefix + suffix for mark in self) else None


_KNOWN = (
    InfillMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    InfillMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    InfillMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


def infill_marks(vocabulary: Vocabulary) -> InfillMarks | None:
    """Return the marks that the model has as tokens; None for a model that fills no gaps."""
    return next((marks for marks in _KNOWN if all(vocabulary.id_of(mark) is not None for mark in marks)), None)
