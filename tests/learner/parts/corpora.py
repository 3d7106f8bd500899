"""Corpora, read whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from learner.midtraining.corpus_files import files_of, read_documents


def read_corpus(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents, each after its place."""
    for found in read_documents(files_of(directory)):
        yield found.where, found.document
