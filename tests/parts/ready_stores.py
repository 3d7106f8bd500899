"""Store files that are at this build's schema already: a copy of one takes a tenth of what making the tables does."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from core.store import SqlStore, open_sqlite


def open_ready(path: Path) -> SqlStore:
    """Open the store file, which is made from a copy of an empty one where there is none."""
    if not path.exists():
        path.write_bytes(_empty())
    return open_sqlite(path)


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        open_sqlite(path).close()  # its write-ahead log is in it once it is closed
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        return path.read_bytes()
