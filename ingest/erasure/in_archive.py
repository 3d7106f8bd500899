"""Erasure in the archive: a file that holds what is erased is written again, with tombstones in its place."""

from collections.abc import Iterator

from core.events import Topic
from core.ids import Namespace
from core.operations.erasures import Erasure, Step
from core.ports import Blobs, Store
from core.records.erasing import digest_of, subjects_of
from ingest.archive.names import ArchiveFile, folder, parse
from ingest.erasure.in_log import TOPICS, Meant, left_of


class InArchive:
    """The files of a namespace, and those of records that do not decode. A file's name and its offsets stay."""

    name = "archive"

    def __init__(self, blobs: Blobs, store: Store) -> None:
        self._blobs, self._store = blobs, store

    def erase(self, order: Erasure) -> Step:
        found = self.redo(order.namespace, subjects_of(self._store, order))
        files = {each.rpartition(" ")[0] for each in found}
        return Step(removed={"records": len(found), "files": len(files)} if found else {}, digest=digest_of(found))

    def redo(self, namespace: Namespace, meant: Meant) -> list[str]:
        """Write the files again that hold something that is to go; return where that was."""
        return [each for topic in TOPICS for file in self._files(topic, namespace) for each in self._redo(file, meant)]

    def _files(self, topic: Topic, namespace: Namespace) -> Iterator[ArchiveFile]:
        for path in self._blobs.list(f"{folder(topic)}/"):
            file = parse(topic, path)
            if file.namespace in (namespace, None):
                yield file

    def _redo(self, file: ArchiveFile, subjects: Meant) -> list[str]:
        """Write a file again where it has something; return the places of what was, or had been, erased."""
        from ingest.archive.files import read_records, written_again  # with pyarrow, which most services do without

        content, found, raws, is_changed = self._blobs.get(file.path), list[str](), list[bytes](), False
        for record in read_records(content, file.path):
            left = left_of(record, subjects)
            raws.append(record.raw if left is None else left)
            if left is not None:
                found.append(f"{file.path} {record.offset}")
                is_changed = is_changed or left != record.raw
        if is_changed:
            self._blobs.put(file.path, written_again(content, raws, file.path))
        return found
