"""Which optional parts a change calls for: the table `.ci/plan`, and what was changed since a commit that passed."""

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path


def read(table: Path) -> dict[str, frozenset[str]]:
    """Return the parts by folder or file, as a path from the top of the checkout."""
    lines = (line.partition("#")[0].split() for line in table.read_text().splitlines())
    return {words[0]: frozenset(words[1:]) for words in lines if words}


def called_for(table: Mapping[str, frozenset[str]], changed: Iterable[str]) -> frozenset[str]:
    """Return the parts that changed files call for, each by the longest entry that holds it."""
    found: set[str] = set()
    for path in changed:
        entries = [each for each in table if path == each or (each.endswith("/") and path.startswith(each))]
        if entries:
            found |= table[max(entries, key=len)]
    return frozenset(found)


def changed_since(passed: Iterable[str]) -> list[str] | None:
    """Return the files that differ from the newest of these commits that HEAD descends from, with uncommitted ones.

    None if HEAD descends from none of them: then nobody knows what was changed."""
    for commit in passed:
        if not commit or _git("merge-base", "--is-ancestor", commit, "HEAD") is None:
            continue
        changed = _git("diff", "--name-only", commit)
        untracked = _git("ls-files", "--others", "--exclude-standard")
        return None if changed is None else sorted({*changed.splitlines(), *(untracked or "").splitlines()})
    return None


def head() -> str:
    """Return the commit that is checked out; empty outside of a checkout."""
    return (_git("rev-parse", "HEAD") or "").strip()


def is_clean() -> bool:
    """Return whether what is checked out is HEAD, and nothing besides."""
    return _git("status", "--porcelain") == ""


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
