"""Batches of packed rows from a corpus of any size, with replayed sessions mixed in; their order follows from the seed.

A buffer of a given number of tokens is filled with examples, which are shuffled and packed; then it is filled again. A
corpus that fits into the buffer is read once and shuffled anew every epoch. The state is that before the buffer was
filled, and how many of its batches were used: going on from it fills the same buffer again."""

from collections.abc import Iterator
from typing import Any

import torch
from rich.progress import Progress

from core.errors import ConfigError
from learner.midtraining.corpus_reader import CorpusReader
from learner.sequences.packing import Example, PackedRows, pack, to_tensors


class SessionMixture:
    """A mixture of a corpus with sessions, which repeat as the corpus does; `share` of the tokens are theirs."""

    def __init__(
        self,
        corpus: CorpusReader,
        sessions: CorpusReader | None,
        share: float,
        buffer_tokens: int,
        row_tokens: int,
        rows: int,
        seed: int,
    ) -> None:
        assert (sessions is None) == (share == 0)
        self._corpus, self._sessions, self._share = corpus, sessions, share
        self._room = buffer_tokens * (1 - share)
        self._row_tokens, self._rows = row_tokens, rows
        self._generator = torch.Generator().manual_seed(seed)
        self._whole: list[Example] | None = None  # the corpus, where the buffer holds it
        self._tokens = {"corpus": 0, "sessions": 0}  # that went into buffers
        self._taken = 0  # batches of this buffer
        self._before = self._now()
        self.read: dict[str, Any] = {}
        """Counts of what was read: documents of the corpus, and how often it and the sessions came to their end."""

    def batches(self, pad_id: int, progress: Progress) -> Iterator[PackedRows]:
        """Yield batches without end.

        Raises ConfigError naming the file and line at fault; before the first batch if its form is wrong."""
        skip = self._taken
        while True:
            self._before, self._taken = self._now(), 0
            examples = self._fill(progress)
            self.read = {**self._corpus.counts, "epochs": self._corpus.epoch}
            self.read["session_epochs"] = None if self._sessions is None else self._sessions.epoch
            lengths = [len(example.token_ids) for example in examples]
            order = torch.randperm(len(examples), generator=self._generator).tolist()
            rows = pack(lengths, order, self._row_tokens)
            for batch, start in enumerate(range(0, len(rows), self._rows), 1):
                self._taken = batch
                if batch > skip:
                    chosen = [[examples[index] for index in row] for row in rows[start : start + self._rows]]
                    yield to_tensors(chosen, self._row_tokens, pad_id)
            skip = 0

    def _fill(self, progress: Progress) -> list[Example]:
        examples = self._from_corpus(progress)
        self._tokens["corpus"] += sum(len(example.token_ids) for example in examples)
        if self._sessions is None:
            return examples
        most, mixed = self._share / (1 - self._share) * self._tokens["corpus"], list(examples)
        while self._tokens["sessions"] < most:
            found = self._sessions.next() or []
            self._tokens["sessions"] += sum(len(example.token_ids) for example in found)
            mixed += found
            if self._sessions.epoch and not self._tokens["sessions"]:
                raise ConfigError("there is nothing in the sessions to mix in")
        return mixed

    def _from_corpus(self, progress: Progress) -> list[Example]:
        """Read whole documents until the buffer is full, at most to the end of the epoch."""
        if self._whole is not None:
            self._corpus.epoch += 1
            return self._whole
        is_start = self._corpus.is_at_start
        examples: list[Example] = []
        tokens = 0
        task = progress.add_task("tokenise", total=None, note="documents")
        while tokens < self._room:
            found = self._corpus.next()
            if found is None:
                self._whole = examples if is_start else None
                break
            examples += found
            tokens += sum(len(example.token_ids) for example in found)
            progress.advance(task)
        else:
            if is_start and self._corpus.epoch == 0:
                self._corpus.check()
        progress.remove_task(task)
        if not examples and is_start:
            left_out = self._corpus.counts["eval_solution"]
            said = f" but {left_out} that resemble solutions of eval cases" if left_out else ""
            raise ConfigError(f"the corpus has no documents{said}")
        return examples

    # ------------------------------------------------------------------------------------------ resuming

    def _now(self) -> dict[str, Any]:
        return {
            "corpus": self._corpus.state_dict(),
            "sessions": None if self._sessions is None else self._sessions.state_dict(),
            "tokens": dict(self._tokens),
            "generator": self._generator.get_state(),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**self._before, "taken": self._taken, "read": dict(self.read)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state; to be called before the first batch is read."""
        self._corpus.load_state_dict(state["corpus"])
        if self._sessions is not None:
            self._sessions.load_state_dict(state["sessions"])
        self._tokens = dict(state["tokens"])
        self._generator.set_state(state["generator"])
        self._taken, self.read = state["taken"], dict(state["read"])
