"""The stack in containers, as its users see it.

Whatever is killed, paused, emptied or scaled meanwhile, what was acknowledged is kept and counts once. `make deep` does
all of that; continuous integration sees the stack come up, serve, learn and stop."""

import json
import time
import urllib.request
from http.client import HTTPResponse

import pytest
from compose_stack import BACK_TIMEOUT_S, ROOT, STAGES, Refused, Stack, ask, run, wait_for
from compose_users import Users

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]
LIGHT = ("api", "ingest", "score", "watch", "release", "archive", "serve-1")
KILLED = (
    *("api", "learn", "kafka", "postgres", "ingest", "score", "watch", "release", "archive", "serve-1", "engine-1"),
    *("redis", "gateway", "prometheus"),
)
PAUSE_S = 10
ENDS = json.loads((ROOT / "models" / "tiny" / "generation_config.json").read_text())["eos_token_id"]


def test_it_comes_up_well(stack: Stack) -> None:
    told = stack.compose("run", "--rm", "--no-deps", "-T", "doctor")
    assert "wrong" not in told
    assert told.count("SGLang 0.5.23, float32") == 2, "both engines are asked"
    prometheus = stack.address("prometheus", 9090)

    def are_scraped() -> bool:
        with urllib.request.urlopen(prometheus + "/api/v1/targets", timeout=120) as response:
            targets = json.load(response)["data"]["activeTargets"]
        return len(targets) == len(STAGES) + 2 and {target["health"] for target in targets} == {"up"}

    wait_for(are_scraped, 120, "all stages scraped, two of them twice")


def test_stages_without_tensors_have_no_torch_and_are_nobody_much(stack: Stack) -> None:
    code = "import importlib.util as u, os; print(*map(u.find_spec, ('torch', 'triton', 'transformers')), os.getuid())"
    for service in LIGHT:
        assert stack.compose("exec", "-T", service, "python", "-c", code).split() == ["None", "None", "None", "10001"]
    image = stack.inspect(stack.containers("watch")[0])["Config"]["Image"]
    size = int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))
    assert size < 1e9


def test_what_one_replica_takes_the_other_shows(stack: Stack) -> None:
    first, second = (stack.address("api", 8700, index) for index in (1, 2))
    key = stack.key()
    question = {"role": "user", "content": "[web] write total(xs): sum of xs"}
    answer = ask(first + "/v1/chat/completions", key, {"model": "onward-tiny", "messages": [question]})
    ids = answer["onward"]
    told = ask(
        first + "/v1/feedback", key, {"inference_id": ids["inference_id"], "metric_name": "accepted", "value": True}
    )

    def is_shown() -> bool:
        try:
            session = json.dumps(ask(f"{second}/v1/sessions/{ids['session_id']}", key))
        except Refused:  # the writer has not stored its turn yet, and the API waits for that only so long
            return False
        return all(part in session for part in (ids["inference_id"], told["feedback_id"], '"rewards": [{'))

    wait_for(is_shown, 120, "turn, feedback and reward at the other replica")
    report = stack.report([ids["inference_id"]], [told["feedback_id"]])
    assert (report["missing_turns"], report["missing_outcomes"], report["twice"]) == ([], [], [])


def test_it_learns_and_engines_follow(stack: Stack) -> None:
    before = stack.newest_version()
    with Users(stack) as users:
        wait_for(lambda: stack.newest_version() > before, 300, "a further version")

        def are_there() -> bool:
            replicas = ask(stack.url + "/v1/fleet", stack.key("admin_key"))["data"]
            return len(replicas) == 2 and all((replica["serving"] or 0) > before for replica in replicas)

        wait_for(are_there, 300, "both engines on a version that learned")
    users.check_kept()


@pytest.mark.deep
@pytest.mark.parametrize("service", KILLED)
def test_a_kill_costs_nothing_acknowledged(stack: Stack, service: str) -> None:
    with Users(stack) as users:
        users.wait_turns(5)
        is_back = stack.crash(service)
        wait_for(is_back, BACK_TIMEOUT_S, f"{service}'s return")
        users.wait_turns(5)
    users.check_kept()


@pytest.mark.deep
def test_scorers_come_and_go(stack: Stack) -> None:
    with Users(stack) as users:
        users.wait_turns(5)
        for count in ("3", "2"):
            stack.wait_ready()  # an earlier kill may have left some unhealthy: `up --wait` ends at the first of them
            stack.compose(
                "up", "--detach", "--no-build", "--no-recreate", "--wait", "--scale", f"score={count}", timeout_s=300
            )
            assert len(stack.containers("score")) == int(count)
            users.wait_turns(5)
    users.check_kept()


@pytest.mark.deep
def test_chat_goes_on_while_kafka_stands_still(stack: Stack) -> None:
    with Users(stack) as users:
        users.wait_turns(5)
        stack.pause("kafka")
        paused_s = time.monotonic()
        try:
            wait_for(users.take_turn, 120, lambda: f"a turn that began in the pause ({users.refused})")
            time.sleep(max(0.0, paused_s + PAUSE_S - time.monotonic()))
        finally:
            stack.compose("unpause", "kafka")
        users.wait_turns(5)
    users.check_kept()


@pytest.mark.deep
def test_redis_may_forget_everything(stack: Stack) -> None:
    with Users(stack) as users:
        users.wait_turns(5)
        stack.compose("exec", "-T", "redis", "redis-cli", "flushall")
        users.wait_turns(5)
    assert not users.broken
    users.check_kept()


def test_stopping_lets_requests_finish_and_loses_nothing(stack: Stack) -> None:
    with Users(stack) as users:
        users.wait_turns(5)
        with begin_long_answer(stack) as answer:
            stack.compose("stop", timeout_s=300)
            assert answer.read().endswith(b"data: [DONE]\n\n")
            users.inference_ids.append(answer.headers["x-onward-inference-id"])
    codes = {name: stack.inspect(stack.containers(name)[0])["State"]["ExitCode"] for name in (*LIGHT, "learn")}
    assert set(codes.values()) == {0}, codes
    stack.compose("start", timeout_s=300)
    stack.wait_ready()
    users.check_kept()


def begin_long_answer(stack: Stack) -> HTTPResponse:
    """Return a streamed answer whose first token has come while many more are still being generated."""
    question = {"role": "user", "content": "[web] write total(xs): sum of xs"}
    body = {"model": "onward-tiny", "messages": [question], "stream": True, "max_tokens": 150}
    body["logit_bias"] = dict.fromkeys(map(str, ENDS), -100)
    headers = {"Authorization": f"Bearer {stack.key()}", "Content-Type": "application/json"}
    request = urllib.request.Request(stack.url + "/v1/chat/completions", json.dumps(body).encode(), headers)
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=120)
    return answer
