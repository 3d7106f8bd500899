"""What is written to last: a failure keeps its cause and names the file."""

import errno
from pathlib import Path

from learner.versions.durable import named


def test_an_error_of_a_write_keeps_its_cause_and_has_the_files_name() -> None:
    error = named(OSError(errno.ENOSPC, "No space left on device"), Path("kept/journal"))
    assert error.errno == errno.ENOSPC
    assert str(error) == "[Errno 28] No space left on device: 'kept/journal'"
