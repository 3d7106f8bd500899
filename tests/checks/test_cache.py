"""`.ci/cache.sh`: what one checkout has made another one gets, and nobody can spoil what is kept."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".ci" / "cache.sh"
LARGE = 3 << 20


class Checkout:
    """A directory with the script, whose `build/made` is what is kept."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root, self.made, self._cache = root, root / "build" / "made", cache
        (root / ".ci").mkdir(parents=True)
        shutil.copy(CACHE, root / ".ci" / "cache.sh")

    def make(self) -> None:
        (self.made / "bin").mkdir(parents=True)
        (self.made / "bin" / "program").write_text(f"#!{self.made}/bin/python\n{self.root}-other {self.root}/x\n")
        (self.made / "small").write_text("small")
        (self.made / "large").write_bytes(bytes(LARGE))
        (self.made / "link").symlink_to("small")

    def call(self, word: str, key: str = "1") -> str:
        done = subprocess.run(
            [self.root / ".ci" / "cache.sh", word, "thing", key, "build/made"],
            env={**os.environ, "CHECK_CACHE": str(self._cache)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (1 if done.stdout == "miss\n" else 0), done.stderr
        return done.stdout + done.stderr

    def make_and_keep(self, key: str = "1") -> None:
        shutil.rmtree(self.made, ignore_errors=True)
        assert self.call("restore", key) == "miss\n"
        self.make()
        assert "is kept" in self.call("keep", key)


@pytest.fixture
def checkouts(tmp_path: Path) -> tuple[Checkout, Checkout]:
    return Checkout(tmp_path / "first", tmp_path / "cache"), Checkout(tmp_path / "second", tmp_path / "cache")


def test_another_checkout_gets_it_with_its_own_paths(checkouts: tuple[Checkout, Checkout]) -> None:
    first, second = checkouts
    first.make_and_keep()
    assert "miss" in second.call("restore", "2")
    assert "as it was kept" in second.call("restore")
    program = (second.made / "bin" / "program").read_text()
    assert program == f"#!{second.made}/bin/python\n{first.root}-other {second.root}/x\n"
    assert (second.made / "large").stat().st_size == LARGE
    assert (second.made / "link").readlink() == Path("small")
    assert sorted(path.name for path in second.made.parent.iterdir()) == ["made"]


def test_what_is_changed_afterwards_is_not_handed_on(checkouts: tuple[Checkout, Checkout]) -> None:
    first, second = checkouts
    first.make_and_keep()
    second.call("restore")
    (second.made / "small").write_text("changed")
    shutil.rmtree(second.made)
    second.call("restore")
    assert (second.made / "small").read_text() == "small"
    with (first.made / "large").open("r+b") as large:  # the file that is kept, too
        large.write(b"changed")
    shutil.rmtree(second.made)
    assert "miss" in second.call("restore")


def test_the_two_used_last_stay(checkouts: tuple[Checkout, Checkout]) -> None:
    first, second = checkouts
    for key in "12":
        first.make_and_keep(key)
    second.call("restore", "1")
    first.make_and_keep("3")
    kept = {}
    for key in "123":
        shutil.rmtree(second.made, ignore_errors=True)
        kept[key] = "as it was kept" in second.call("restore", key)
    assert kept == {"1": True, "2": False, "3": True}


def test_what_was_there_before_is_not_kept(checkouts: tuple[Checkout, Checkout]) -> None:
    first, second = checkouts
    first.make()
    first.call("restore")
    assert "was there before" in first.call("keep")
    assert "miss" in second.call("restore")
