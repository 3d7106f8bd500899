"""At the limit of its context the model writes a summary, which is a turn of the session and shares its reward."""

from pathlib import Path

import pytest
from api_harness import SPEC, Service, wait_for
from stepping import step
from worked import calling, saying, work

from core.clock import SystemClock
from core.events import Completion
from core.ids import Namespace
from core.reward_spec import RewardSpec
from core.settings import ScoringSettings
from environments.harness import prompts
from environments.harness.harness import Budget, HarnessRun
from scoring.stage import Scorer

SUMMARY = "The value in notes.txt is in line 7; what is left is to write it down."
LOOK = calling(("read", {"path": "notes.txt", "end": 150}))
# The model's tokens are bytes: the tools take 4,000 of them, each look 1,800.
BUDGET = Budget(context_tokens=11_000)


def _worked(service: Service, repository: Path, **settings: object) -> tuple[HarnessRun, list[Completion]]:
    service.policy.context_length = BUDGET.context_tokens
    scripts = [LOOK, LOOK, LOOK, saying(SUMMARY), LOOK, calling(("done", {}))]
    done, _ = work(service, repository, scripts, budget=BUDGET, answer_tokens=400, summary_tokens=200, **settings)
    return done, [service.turn(inference_id) for inference_id in done.inference_ids]


def test_the_next_turn_has_the_task_and_the_summary_and_continues_it(service: Service, repository: Path) -> None:
    done, turns = _worked(service, repository)
    assert (done.ending, done.summaries) == ("done", 1)
    assert [turn.purpose for turn in turns] == ["turn", "turn", "turn", "summary", "turn", "turn"]
    summary, after = turns[3], turns[4]
    assert summary.parent_id == turns[2].inference_id
    assert summary.messages[-1]["content"] == prompts.SUMMARISE
    assert summary.prompt_token_ids[: len(turns[2].prompt_token_ids)] == turns[2].prompt_token_ids
    assert after.parent_id == summary.inference_id
    assert [message["content"] for message in after.messages[1:]] == ["Repair add.", SUMMARY, prompts.GO_ON]
    assert all(turn.num_prompt_tokens + turn.num_output_tokens <= BUDGET.context_tokens for turn in turns)
    assert all(turn.trainable for turn in turns)
    assert {turn.session_id for turn in turns} == {done.session_id}


def test_all_turns_share_the_sessions_reward_the_summary_too_where_the_spec_says_so(
    service: Service, repository: Path
) -> None:
    shared = {"session": {"purposes": ["turn", "suggestion", "summary"]}}
    spec = RewardSpec.model_validate(SPEC.model_dump(mode="json", exclude_unset=True) | shared)
    done, turns = _worked(service, repository)
    told = {"session_id": done.session_id, "metric_name": "shipped", "value": True}
    assert service.post("/v1/feedback", told).status_code == 200
    store = service.store._store
    scorer = Scorer(service.log._log, store, spec, ScoringSettings(), SystemClock())

    def rewards() -> dict[str, float]:
        step(scorer)
        with store.look() as view:
            found = view.rewards.after(Namespace("default"), 0, 1000)
        return {reward.inference_id: reward.value for _, reward in found}

    try:
        wait_for(lambda: len(rewards()) == len(turns), "a reward for each turn")
        assert rewards() == dict.fromkeys(done.inference_ids, 0.5)
    finally:
        scorer.close()


def test_results_that_leave_no_room_for_a_summary_are_cut_and_say_so(service: Service, repository: Path) -> None:
    service.policy.context_length = BUDGET.context_tokens
    many = calling(*[("read", {"path": "notes.txt", "end": 300})] * 3)
    done, _ = work(
        service, repository, [many, saying(SUMMARY), saying("Done.")],
        budget=BUDGET, answer_tokens=400, summary_tokens=200,
    )  # fmt: skip
    assert (done.ending, done.summaries) == ("done", 1)
    summary = service.turn(done.inference_ids[1])
    shown = [message["content"] for message in summary.messages if message["role"] == "tool"]
    assert len(shown) == 3
    assert all("characters left out" in content for content in shown)
    assert summary.num_prompt_tokens + 200 <= BUDGET.context_tokens


def test_truncation_forgets_the_oldest_instead(service: Service, repository: Path) -> None:
    service.policy.context_length = BUDGET.context_tokens
    done, _ = work(
        service, repository, [LOOK] * 4 + [calling(("done", {}))],
        budget=BUDGET, answer_tokens=400, at_limit="truncate",
    )  # fmt: skip
    assert (done.ending, done.summaries) == ("done", 0)
    last = service.turn(done.inference_ids[-1])
    assert last.messages[1]["content"] == "Repair add."
    assert sum(message["role"] == "tool" for message in last.messages) < 4


@pytest.mark.parametrize("at_limit", ["summarise", "truncate"])
def test_a_task_that_fills_the_context_by_itself_ends_there(service: Service, repository: Path, at_limit: str) -> None:
    service.policy.context_length = BUDGET.context_tokens
    scripts = [LOOK, *[saying(SUMMARY)] * 3]
    done, _ = work(
        service, repository, scripts, budget=BUDGET, instruction="Repair add. " * 500, at_limit=at_limit,
        answer_tokens=400, summary_tokens=200,
    )  # fmt: skip
    assert done.ending == "context"
