"""The journal: what was begun is never lost, what has ended never counts twice."""

import sqlite3
from pathlib import Path

import pytest
from rollouts_world import HARNESS, task

from environments.errors import EnvironmentFault
from environments.harness.harness import CallRecord, HarnessRun
from environments.rollouts.episode import Episode, EpisodeResult, Verdict
from environments.rollouts.journal import JournalInUse, RolloutJournal
from environments.rollouts.plan import episode_of
from environments.rollouts.reporting.figures import Attempt, figures_of
from environments.rollouts.reports import FAILED, OUT_OF_TIME, REWARD


def episode(journal: RolloutJournal, number: int = 0) -> Episode:
    return episode_of(journal.id, HARNESS, "own", task("t"), number)


def result(
    of: Episode, verdict: Verdict = "judged", reward: float | None = 1.0, part: str | None = None
) -> EpisodeResult:
    return EpisodeResult(of, verdict, reward, None, 1.0, 2.0, part, "why")


def test_what_was_under_way_is_tried_again_and_its_session_is_void(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path / "j.db")
    first = episode(journal)
    journal.begin(first)
    journal.close()
    journal = RolloutJournal(tmp_path / "j.db")
    (waiting,) = journal.waiting()
    assert (waiting.episode.episode_id, waiting.episode.attempt, waiting.failures) == (first.episode_id, 2, 0)
    (report,) = journal.untold()
    assert (report.session_id, report.metric_name, report.value) == (first.session_id, FAILED, True)
    assert report.tags["part"] == "machine"
    journal.close()


def test_an_end_and_its_report_are_there_together(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path / "j.db")
    first, second = episode(journal, 0), episode(journal, 1)
    for each in (first, second):
        journal.begin(each)
    journal.end(result(first, reward=0.5), again=False)
    journal.end(result(second, "out_of_time", None), again=False)
    told = {report.metric_name: report for report in journal.untold()}
    assert (told[REWARD].value, told[REWARD].session_id) == (0.5, first.session_id)
    assert told[OUT_OF_TIME].session_id == second.session_id
    journal.told(told[REWARD].feedback_id, "recorded")
    journal.close()
    journal = RolloutJournal(tmp_path / "j.db")
    assert [report.metric_name for report in journal.untold()] == [OUT_OF_TIME]
    assert (journal.waiting(), journal.ended()) == ([], 2)
    assert [each.episode for each in journal.attempts(10)] == [second, first]
    journal.close()


def test_an_episode_has_no_second_reward(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path / "j.db")
    first = episode(journal)
    journal.begin(first)
    journal.end(result(first), again=False)
    again = Episode(**{**vars(first), "attempt": 2})
    journal.begin(again)
    with pytest.raises(sqlite3.IntegrityError):
        journal.end(result(again), again=False)
    assert len(journal.untold()) == 1
    journal.close()


def test_the_page_counts_calls_and_turns_without_a_look_into_them(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path / "j.db")
    call = CallRecord("turn-1", "call-1", "read", 0, 1.0, 2.0, True, "digest", 10)
    work = HarnessRun("done", "s", ("turn-1", "turn-2"), (1, "canary@2"), (call,) * 3, output_tokens=7)
    for number, done in enumerate((work, None)):
        journal.begin(episode(journal, number))
        journal.end(EpisodeResult(episode(journal, number), "judged", 1.0, done, 1.0, 3.0), again=False)
    (task_of,) = figures_of(journal.attempts_as(Attempt, 10))
    assert (task_of.rewards, task_of.seconds, dict(task_of.endings)) == ([1.0, 1.0], [2.0, 2.0], {"done": 1})
    assert (task_of.turns, task_of.calls, task_of.tokens) == ([2], [3], [7])
    journal.close()


def test_what_is_done_with_is_forgotten_but_for_its_number(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path / "j.db")
    episodes = [episode(journal, number) for number in range(6)]
    for each in episodes:
        journal.begin(each)
        if each != episodes[5]:
            again = each == episodes[4]
            journal.end(result(each, "infrastructure" if again else "judged", None if again else 1.0), again=again)
    second = Episode(**{**vars(episodes[4]), "attempt": 2})
    journal.begin(second)
    journal.end(result(second), again=False)
    untold = {report.session_id: report.feedback_id for report in journal.untold()}
    for each in (*episodes[:2], episodes[3]):
        journal.told(untold[each.session_id], "recorded" if each != episodes[1] else "unknown_session")
    before = journal.begun(), journal.ended(), journal.answers()
    assert journal.forget(kept=3) == 2  # the third is yet to be told, and the fourth is among the latest
    assert journal.forget(kept=3) == 0
    assert (journal.begun(), journal.ended(), journal.answers()) == before
    assert {each.episode.episode_id for each in journal.attempts(10)} == {
        each.episode_id for each in (episodes[2], episodes[3], second)
    }
    for feedback_id in untold.values():
        journal.told(feedback_id, "recorded")
    assert journal.forget(kept=0) == 3
    journal.close()
    journal = RolloutJournal(tmp_path / "j.db")
    assert (journal.begun(), journal.ended()) == before[:2]
    assert [each.episode.episode_id for each in journal.waiting()] == [episodes[5].episode_id]
    journal.close()


def test_one_program_at_a_time(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path / "j.db")
    with pytest.raises(JournalInUse, match="another program"):
        RolloutJournal(tmp_path / "j.db")
    journal.close()
    RolloutJournal(tmp_path / "j.db").close()


def test_another_builds_journal_is_refused(tmp_path: Path) -> None:
    RolloutJournal(tmp_path / "j.db").close()
    with sqlite3.connect(tmp_path / "j.db") as database:
        database.execute("UPDATE journal SET version = 99")
    database.close()
    with pytest.raises(EnvironmentFault, match="another build"):
        RolloutJournal(tmp_path / "j.db")
    with pytest.raises(EnvironmentFault, match="another build"):  # it holds nothing that it refused
        RolloutJournal(tmp_path / "j.db")


def test_what_is_no_journal_is_not_taken_for_one_in_use(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("This is no database, but it is as long as the head of one would be. " * 20)
    (tmp_path / "folder.db").mkdir()
    for name in ("text.db", "folder.db"):
        with pytest.raises(EnvironmentFault, match=f"{name}: it cannot be opened") as fault:
            RolloutJournal(tmp_path / name)
        assert not isinstance(fault.value, JournalInUse)
