"""A candidate passes once it is shown to be within the margin; otherwise it is held, with the reason."""

import asyncio
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.evals.cases import CannotRun, Case, Suite
from serving.evals.comparison import Pair, cases_needed, difference, paired, power
from serving.evals.gate import GateBounds, GateDecision, evaluate, judge
from serving.evals.run import CaseResult, SuiteLimits

BOUNDS = GateBounds()


@cache
def case(name: str, group: str = "all", weight: float = 1.0) -> Case:
    checker = {"kind": "exact", "text": "yes"}
    return Case.model_validate({"name": name, "prompt": "?", "checker": checker, "group": group, "weight": weight})


def results(scores: list[float | None], group: str = "all", weights: list[float] | None = None) -> list[CaseResult]:
    weights = weights or [1.0] * len(scores)
    return [
        CaseResult(case(f"{group} {n}", group, weight), score, "" if score is not None else "503: away")
        for n, (score, weight) in enumerate(zip(scores, weights, strict=True))
    ]


def pairs(gains: list[float], weights: list[float] | None = None) -> list[Pair]:
    weights = weights or [1.0] * len(gains)
    return [
        Pair(str(n), "all", w, max(g, 0.0), max(-g, 0.0)) for n, (g, w) in enumerate(zip(gains, weights, strict=True))
    ]


def test_the_interval_is_that_of_agresti_and_min() -> None:
    """Half a case is added to each of the four cells of the table: 5 won, 2 lost, 23 alike."""
    found = difference(pairs([1.0] * 5 + [-1.0] * 2 + [0.0] * 23), 0.05)
    won, lost, whole = 5.5, 2.5, 32
    error = math.sqrt(won + lost - (won - lost) ** 2 / whole) / whole
    reach = NormalDist().inv_cdf(0.95) * error
    assert (found.low, found.high) == pytest.approx(((won - lost) / whole - reach, (won - lost) / whole + reach))
    assert (found.estimate, found.cases, found.effective) == (pytest.approx(0.1), 30, pytest.approx(30))


GAINS = st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 1.0]) | st.floats(-1, 1), st.floats(0.01, 100)), min_size=1)


@given(cases=GAINS, scale=st.floats(0.01, 100))
def test_intervals_do_not_know_the_unit_of_weights_or_which_side_is_which(
    cases: list[tuple[float, float]], scale: float
) -> None:
    gains, weights = [gain for gain, _ in cases], [weight for _, weight in cases]
    one, scaled = difference(pairs(gains, weights), 0.05), difference(pairs(gains, [scale * w for w in weights]), 0.05)
    assert (one.low, one.high) == pytest.approx((scaled.low, scaled.high), abs=1e-9)
    other = difference(pairs([-gain for gain in gains], weights), 0.05)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-9)
    assert one.low < one.high
    assert one.candidate - one.live == pytest.approx(one.estimate, abs=1e-9)


def test_a_case_of_great_weight_is_worth_little_evidence() -> None:
    even, uneven = (
        difference(pairs([1.0, -1.0] * 50, weights), 0.05) for weights in ([1.0] * 100, [50.0] + [1.0] * 99)
    )
    assert even.effective == pytest.approx(100)
    assert uneven.effective < 10
    assert uneven.high - uneven.low > 2 * (even.high - even.low)


def test_sides_that_were_asked_different_cases_are_not_compared() -> None:
    with pytest.raises(ValueError, match="not asked the same cases"):
        paired(results([1.0]), results([1.0], group="other"))
    with pytest.raises(ValueError, match="not asked the same cases"):
        paired(results([1.0]), results([1.0, 0.0]))


@pytest.mark.parametrize(("alike", "action"), [(1, "hold"), (10, "hold"), (30, "hold"), (31, "pass"), (100, "pass")])
def test_few_cases_alike_are_no_proof(alike: int, action: str) -> None:
    found = judge(results([1.0] * alike), results([1.0] * alike), BOUNDS)
    assert found.action == action
    assert found.figures["effective_cases"] == pytest.approx(alike)


def test_a_verdict_reads_well() -> None:
    right, wrong = [1.0] * 60 + [0.0] * 40, [1.0] * 30 + [0.0] * 70
    worse = judge(results(wrong), results(right), BOUNDS)
    assert worse.action == "refuse"
    assert worse.why == (
        "worse: 30.0% of 100 cases right against 60.0%, -30.0%, within [-37.0%, -21.8%]; lost: all 30, all 31, "
        "all 32, all 33, all 34, and 25 more"
    )
    assert worse.lost == [f"all {n}" for n in range(30, 60)]
    same = judge(results([1.0, 0.0] * 20), results([0.0, 1.0] * 20), BOUNDS)
    assert same.action == "hold"
    assert same.why == (
        "not shown to be no worse by 5.0%: 50.0% of 40 cases right against 50.0%, +0.0%, within [-25.1%, +25.1%]; of "
        "an equal one these cases show it in 9% of trials, 2415 would in 80%; lost: all 1, all 3, all 5, "
        "all 7, all 9, and 15 more"
    )
    better = judge(results([*right[:-1], 0.0]), results([*wrong[:-1], 1.0]), BOUNDS)
    assert better.why == "no worse by 5.0%: 60.0% of 100 cases right against 31.0%, +29.0%, within [+20.6%, +36.3%]"
    assert better.lost == ["all 99"], "known, but one among many won is not what the verdict is about"


def test_a_case_that_could_not_run_keeps_it_from_passing() -> None:
    right = [1.0] * 200
    for candidate, live in (([None, *right], [1.0, *right]), ([1.0, *right], [None, *right])):
        found = judge(results(candidate), results(live), BOUNDS)
        side = "candidate" if candidate[0] is None else "live"
        assert found.action == "hold"
        assert found.unscored == {f"{side}: all 0": "503: away"}
        assert f"1 answers could not be had or checked ({side}: all 0: 503: away)" in found.why
        assert found.figures["unscored"] == 1
    assert judge(results([None, *[0.0] * 200]), results([None, *right]), BOUNDS).action == "refuse"


def test_none_that_ran_on_both_sides_is_held() -> None:
    found = judge(results([None, 1.0] * 4), results([1.0, None] * 4), BOUNDS)
    assert (found.action, found.figures) == ("hold", {"unscored": 8})
    assert found.why.startswith("no case ran on both sides: candidate: all 0: 503: away; candidate: all 2")
    assert found.why.endswith("; and 3 more")
    assert judge([], [], BOUNDS).action == "hold"


def test_forgetting_one_thing_is_not_outweighed_by_all_else() -> None:
    candidate = results([1.0] * 400, "python") + results([0.0] * 10 + [1.0] * 10, "sql")
    live = results([0.0] * 20 + [1.0] * 380, "python") + results([1.0] * 20, "sql")
    found = judge(candidate, live, BOUNDS)
    assert found.action == "refuse"
    assert found.why.startswith("worse in group 'sql' (-50.0%, within [")
    assert found.figures["low"] > -BOUNDS.margin
    assert found.lost == [f"sql {n}" for n in range(10)]


@pytest.mark.parametrize(
    ("few", "lost", "others", "action", "said"),
    [
        (2, 2, 1, "hold", "half or more is lost of group 'few' (-100.0%, within ["),
        (3, 3, 4, "hold", "half or more is lost of group 'few' (-100.0%, within ["),
        (4, 2, 4, "hold", "half or more is lost of group 'few' (-50.0%, within ["),
        (4, 4, 4, "refuse", "worse in group 'few'"),
        (3, 1, 4, "pass", "; too few cases to refuse it by, were all of them lost: group 'few' (3, -33.3%)"),
        (2, 0, 1, "pass", "; too few cases to refuse it by, were all of them lost: group 'few' (2, +0.0%)"),
        (4, 0, 1, "pass", "no worse by 5.0%"),
    ],
)
def test_a_group_too_small_to_tell_does_not_pass_in_silence(
    few: int, lost: int, others: int, action: str, said: str
) -> None:
    rest = [one for n in range(others) for one in results([1.0] * 60, f"other {n}")]
    found = judge(
        results([0.0] * lost + [1.0] * (few - lost), "few") + rest, results([1.0] * few, "few") + rest, BOUNDS
    )
    assert found.action == action, found.why
    assert said in found.why
    assert ("too few cases to refuse it by" in found.why) == (action != "refuse" and few < 4)
    named = "; lost: " + ", ".join(f"few {n}" for n in range(lost))
    assert found.why.endswith(named) == (action != "pass")
    assert found.lost == [f"few {n}" for n in range(lost)]


def test_what_was_won_in_a_small_group_outweighs_what_was_lost() -> None:
    rest = results([1.0] * 60, "other")
    found = judge(results([0.0, 1.0], "few") + rest, results([1.0, 0.0], "few") + rest, BOUNDS)
    assert found.action == "pass"
    assert "group 'few' (2, +0.0%)" in found.why


def answers(rng: np.random.Generator, live: list[float], loss: float, regain: float) -> list[float | None]:
    """Return scores where the live version's successes are lost, and its failures gained, with these probabilities."""
    return [float(rng.random() > loss) if score else float(rng.random() < regain) for score in live]


def verdicts(loss: float, regain: float, *, cases: int = 400, trials: int = 200) -> list[GateDecision]:
    found = []
    for trial in range(trials):
        rng = np.random.default_rng((int(1000 * loss), trial))
        live = [float(rng.random() < 0.7) for _ in range(cases)]
        found.append(judge(results(answers(rng, live, loss, regain)), results(list(live)), BOUNDS))
    return found


def share(found: list[GateDecision], action: str) -> float:
    return sum(verdict.action == action for verdict in found) / len(found)


def test_how_often_it_errs() -> None:
    """The error rates are as promised, within three standard errors of 200 trials.

    The live version succeeds in 70% of cases, and a few answers change either way. A version worse by the margin passes
    in 5% of trials; an equal one passes as often as its power says, and is refused no more often than allowed."""
    at_margin = verdicts(loss=(0.05 + 0.03 * 0.3) / 0.7, regain=0.03)
    assert share(at_margin, "pass") < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    equal = verdicts(loss=0.06 * 3 / 7, regain=0.06, cases=200)
    promised = float(np.mean([verdict.figures["power"] for verdict in equal]))
    assert share(equal, "pass") > promised - 0.1
    assert share(equal, "refuse") < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    assert share(verdicts(loss=0.3, regain=0.0, trials=20), "refuse") == 1.0
    assert share(verdicts(loss=0.0, regain=0.2, trials=20), "pass") == 1.0


SKILLS = {"python": 0.8, "sql": 0.9, "formats": 0.7, "dialogue": 0.6, "tools": 0.5}  # how often live is right


@pytest.mark.parametrize(
    ("changed", "action"),
    [
        ({"sql": 0.5}, "refuse"),  # forgets one thing, and is as good in all others
        ({"sql": 0.6, "python": 0.95, "dialogue": 0.75}, "refuse"),  # forgets it, and is better in others
        ({skill: right - 0.2 for skill, right in SKILLS.items()}, "refuse"),  # learned to please: less of all is right
        ({skill: right + 0.1 for skill, right in SKILLS.items()}, "pass"),
    ],
)
def test_in_ten_of_ten_trials_it_tells_what_was_planted(changed: dict[str, float], action: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        candidate, live = [], []
        for skill, right in SKILLS.items():
            ease = rng.random(80)  # of each case, for both; a fifth of the answers are luck
            live += results([float(e) for e in right_answers(rng, ease, right)], skill)
            candidate += results([float(e) for e in right_answers(rng, ease, changed.get(skill, right))], skill)
        assert judge(candidate, live, BOUNDS).action == action, seed


def right_answers(rng: np.random.Generator, ease: np.ndarray, share: float) -> np.ndarray:
    lucky = rng.random(len(ease)) < 0.2
    return np.where(lucky, rng.random(len(ease)), ease) < share


@given(gains=st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1), margin=st.floats(0.01, 0.3))
def test_as_many_cases_as_needed_have_the_power_and_no_fewer(gains: list[float], margin: float) -> None:
    found = difference(pairs(gains), 0.05)
    needed = cases_needed(found.spread, margin, 0.05, 0.8)
    assert power(replace(found, effective=needed), margin, 0.05) >= 0.8 - 1e-9
    assert power(replace(found, effective=needed - 1), margin, 0.05) < 0.8


def test_a_gate_asks_both_sides_at_once() -> None:
    under_way, most = {"candidate": 0, "live": 0}, {"candidate": 0, "live": 0}
    together = asyncio.Event()

    def side(name: str, text: str) -> object:
        async def answer(asked: Case) -> str:
            under_way[name] += 1
            most[name] = max(most[name], under_way[name])
            if all(under_way.values()):
                together.set()
            await together.wait()
            await asyncio.sleep(0)
            under_way[name] -= 1
            if asked.name == "39" and name == "live":
                raise CannotRun("500: broken")
            return text

        return answer

    cases = tuple(case(str(n)) for n in range(40))
    suite = Suite(cases, dict.fromkeys((one.name for one in cases), Path()), "digest")
    better = evaluate(suite, side("candidate", "yes"), side("live", "no"), SuiteLimits(concurrency=6), BOUNDS)  # type: ignore[arg-type]
    found = asyncio.run(better)
    assert most == {"candidate": 3, "live": 3}
    assert (found.action, dict(found.unscored)) == ("hold", {"live: 39": "500: broken"})
    assert (found.figures["candidate"], found.figures["live"], found.figures["cases"]) == (1.0, 0.0, 39)
