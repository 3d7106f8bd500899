"""A reader of a corpus that encodes it document by document, epoch after epoch without end, from any position."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from core.errors import ConfigError
from learner.midtraining.corpus import encode, texts_of, windows
from learner.midtraining.corpus_files import CorpusPosition, FoundDocument, files_of, read_documents
from learner.sequences.packing import Example
from learner.sequences.resemblance import NOTHING_KEPT_OUT, KeptOut

Long = Literal["refuse", "split"]


class CorpusReader:
    """A reader of corpora.

    `counts` are of the first epoch: documents read; those `too_short` to predict anything; those `split`, and the
    windows that they became; and those left out, since they resemble an `eval_solution`."""

    def __init__(
        self,
        corpora: Sequence[Path],
        tokenizer: Any,
        row_tokens: int,
        long: Long,
        kept_out: KeptOut = NOTHING_KEPT_OUT,
        source: int = 0,
    ) -> None:
        """Read the corpora one after another; `source` is the number of the first. Raises ConfigError."""
        found = [(source + number, path) for number, corpus in enumerate(corpora) for path in files_of(corpus)]
        self._sources, self._files = [number for number, _ in found], [path for _, path in found]
        self._tokenizer, self._row_tokens, self._long, self._kept_out = tokenizer, row_tokens, long, kept_out
        self._documents: Iterator[FoundDocument] | None = None
        self.place, self.epoch = CorpusPosition(), 0
        self.counts = Counter[str]()

    @property
    def is_at_start(self) -> bool:
        return self.place == CorpusPosition()

    def next(self) -> list[Example] | None:
        """Return the next document, in as many windows as it needs; None at the end of an epoch.

        One that is kept out is in no window.
        Raises ConfigError naming the file and line that is no document, or is too long."""
        if self._documents is None:
            self._documents = read_documents(self._files, self.place)
        found = next(self._documents, None)
        if found is None:
            self._documents, self.place, self.epoch = None, CorpusPosition(), self.epoch + 1
            return None
        self.place = found.next
        return self._examples(found)

    def check(self) -> None:
        """Check the form of what is left of the epoch, without moving. Raises ConfigError."""
        for _ in read_documents(self._files, self.place):
            pass

    def _examples(self, found: FoundDocument) -> list[Example]:
        example = encode(self._tokenizer, found.document, found.where)
        if self._is_kept_out(found):
            self.counts["eval_solution"] += self.epoch == 0
            return []
        length = len(example.token_ids)
        if length > self._row_tokens and self._long == "refuse":
            raise ConfigError(f"{found.where}: {length} tokens, a row holds {self._row_tokens} (--long split)")
        examples = windows(example, self._row_tokens, self._sources[found.next.file])
        if self.epoch == 0:
            self.counts["documents"] += 1
            self.counts["too_short"] += length < 2
            if len(examples) > 1:
                self.counts["split"] += 1
                self.counts["windows"] += len(examples)
        return examples

    def _is_kept_out(self, found: FoundDocument) -> bool:
        if not self._kept_out.suites:
            return False
        return any(self._kept_out.cases_told_by(text) for text in texts_of(self._tokenizer, found.document))

    def fingerprint(self) -> list[list[Any]]:
        """Return name and size of each file, by which a resumed run recognises them."""
        return [[path.name, path.stat().st_size] for path in self._files]

    def state_dict(self) -> dict[str, Any]:
        return {"place": asdict(self.place), "epoch": self.epoch, "counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._documents = None
        self.place, self.epoch = CorpusPosition(**state["place"]), state["epoch"]
        self.counts = Counter(state["counts"])
