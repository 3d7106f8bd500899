"""A session in which an agent works on one of our own tasks becomes a case that the gate asks."""

from pathlib import Path

from kept_images import KEPT
from mined_tasks import MinedTask
from sandboxed import require_bubblewrap

OWN = Path(__file__).resolve().parents[3] / "environments" / "tasks" / "own" / "make-the-failing-test-pass"
METHOD = '''\
    def count_tokens(self, ttype):
        """Return how many tokens below this list have a type."""
        return sum(token.ttype in ttype for token in self.flatten())


class Statement(TokenList):'''
TESTS = ("terminal", {"command": "python -m pytest -q -p no:cacheprovider tests/test_count_tokens.py"})
CALLS = [
    ("grep", {"pattern": "class Statement"}),
    TESTS,
    ("edit", {"path": "sqlparse/sql.py", "edits": [{"old": "class Statement(TokenList):", "new": METHOD}]}),
    TESTS,
    ("done", {"message": "The test passes."}),
]


def test_work_on_one_of_our_own_tasks_becomes_a_case_that_a_worse_version_loses(tmp_path: Path) -> None:
    require_bubblewrap()
    mined = MinedTask(tmp_path, OWN, CALLS, KEPT, {"*": "machine"})
    mined.work()
    _, (draft,) = mined.mined()
    assert draft.work is not None
    assert [each.failed_before for each in draft.work.tests] == [True]
    assert mined.accepted(draft.name) == [200, 409]
    verdict = mined.judged()
    assert (verdict.figures["cases_live"], verdict.figures["cases_candidate"]) == (1.0, 0.0), verdict
