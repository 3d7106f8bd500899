"""One's own sessions as cases: mined from a service that ran, accepted, asked, and from then on never learned."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from service_tree import Service, wait_for

from learner.versions import manifest
from onward.cli import app
from onward.wiring.foundation import open_foundation
from serving.evals.cases import load_suite, read_suite

MakeService = Callable[..., Service]
ASKED = ("total(xs): sum of xs", "longest(words): the longest word", "is_even(n): whether n is even", "head(path)")
ASKED += ("reverse(text)", "count_lines(path): the number of lines", "mean(xs): their mean", "first(xs)")


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = 0
    try:
        app([*words], result_action="return_value")
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, capsys.readouterr().out


def test_sessions_become_cases_that_no_version_learns(
    make_service: MakeService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = make_service(**{"learner.batch.turns": 4, "learner.batch.min_turns": 2}).start(learner__enabled=False)
    for number, asked in enumerate(ASKED):
        turn = service.chat(f"[web] write {asked}", max_tokens=40, session_id=f"session-{number}")["onward"]
        service.post("/v1/feedback", {"inference_id": turn["inference_id"], "metric_name": "accepted", "value": True})
    wait_for(lambda: len(service.get("/v1/rewards")["data"]) >= len(ASKED), what="the rewards")

    suite, directory = tmp_path / "suite", str(service.directory)
    code, said = ran(capsys, "suite", "mine", directory, "--out", str(suite), "--most", "1")
    assert (code, len(json.loads(said)["drafts"])) == (0, 1), said
    (draft,) = read_suite(suite).drafts.values()
    checker = f'{{ kind = "contains", all = [{json.dumps(draft.solution.split()[0])}] }}'
    assert ran(capsys, "suite", "accept", str(suite), draft.name, "--checker", checker)[0] == 0
    asked = ["evals", "run", str(suite), "--url", f"{service.url}/v1", "--model", "onward-tiny", "--json"]
    code, said = ran(capsys, *asked)
    assert json.loads(said)["cases"][draft.name]["score"] in (0.0, 1.0), said

    service.stop()
    service.start(**{"learner.admission.keep_out": str(suite)})
    wait_for(lambda: len(service.get("/v1/policies")["data"]) > 1, what="a version that learned")
    known = load_suite(suite)
    (first, *_) = service.get("/v1/policies")["data"][-2::-1]
    assert [(each["suite"], each["digest"], each["solutions"]) for each in first["kept_out"]] == [
        (str(suite), known.digest, 1)
    ]
    wait_for(lambda: left_out(service) >= 1, what="a version that tells of the turn that was left out")
    service.stop()
    with_it = [made for made in manifests(service) if draft.source.turn in made.drops.get("eval_solution", ())]
    assert len(with_it) == 1
    (record,) = with_it[0].kept_out
    assert record.turns == len(with_it[0].drops["eval_solution"])
    trained = {each.inference_id for made in manifests(service) for each in made.turns}
    assert draft.source.turn not in trained
    assert trained


def left_out(service: Service) -> int:
    listed = service.get("/v1/policies")["data"]
    return sum(suite["turns"] for policy in listed for suite in policy["kept_out"])


def manifests(service: Service) -> list[manifest.Manifest]:
    made = open_foundation(service.directory)
    try:
        return [manifest.decode(made.blobs.get(path)) for path in made.blobs.list("manifests/")]
    finally:
        made.close()
