"""What is written to last: a failure keeps its cause and names the file, and another build's entry is told apart."""

import errno
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.events import PolicyVersion
from core.ids import base_ref
from learner.versions.durable import named
from learner.versions.journal import FORMAT, Entry, Journal
from learner.versions.manifest import Manifest


def test_an_error_of_a_write_keeps_its_cause_and_has_the_files_name() -> None:
    error = named(OSError(errno.ENOSPC, "No space left on device"), Path("kept/journal"))
    assert error.errno == errno.ENOSPC
    assert str(error) == "[Errno 28] No space left on device: 'kept/journal'"


def an_entry(written_by: int) -> Entry:
    ref, now = base_ref(2), datetime(2026, 1, 1, tzinfo=UTC)
    policy = PolicyVersion(version=ref, policy="p", digest="", parent=None, manifest=None, weights="", created_at=now)
    made = Manifest(version=ref, parent=base_ref(1), seed=0, settings="{}", turns=(), rewards=(), ages_s=(), applied={})
    known = {"policy": policy, "manifest": made, "lineage": (), "live": None, "refused": (), "offsets": {}}
    return Entry(**known, pending=(), format=written_by)  # type: ignore[arg-type]


def test_a_journal_of_a_newer_build_is_refused_and_one_of_the_build_before_is_read(tmp_path: Path) -> None:
    """A build that passed over what waits to be learned again would lose it."""
    journal = Journal(tmp_path)
    for written_by in (1, FORMAT):
        journal.write(an_entry(written_by))
        (found,) = journal.newest_first()
        assert isinstance(found, Entry)
        assert (found.format, found.again, found.heeded) == (written_by, (), 0)
    journal.write(an_entry(FORMAT + 1))
    with pytest.raises(
        ConfigError, match=rf"journal-0+2\.msgpack\.zst: format {FORMAT + 1}, .* a newer build wrote it"
    ):
        next(journal.newest_first())
