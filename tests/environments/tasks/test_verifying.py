"""The tests of a task judge what an agent left behind, and nothing but that."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sandboxed import PATIENCE_S
from task_folders import PASSES, prepared, write_task

from environments.errors import InfrastructureFailure, NoVerdict, VerifierOutOfTime
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import CommandResult, Sandbox, SandboxSpec
from environments.tasks.opening import open_sandbox
from environments.tasks.preparing import Lent
from environments.tasks.rewards import from_named, from_text, reward_of
from environments.tasks.task import Artifact, JudgedAnswer, Task
from environments.tasks.verifying import Verdict, verify

Agent = Callable[[Sandbox], Awaitable[object]]
SEPARATE = """
artifacts = ["/app/made.txt", { source = "/app/folder", exclude = ["*.tmp"] }, "/app/never"]
[verifier]
environment_mode = "separate"
"""


async def nothing(sandbox: Sandbox) -> None: ...


def does(script: str) -> Agent:
    async def agent(sandbox: Sandbox) -> None:
        result = await sandbox.run(("sh", "-c", script), timeout_seconds=PATIENCE_S)
        assert result.exit_code == 0, result

    return agent


def judged(folder: Path, images: Path, agent: Agent = nothing, lent: Lent | None = None) -> Verdict:
    async def run() -> Verdict:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            task = await prepared(folder, images, lent)
            async with await open_sandbox(task, sandboxes) as sandbox:
                await agent(sandbox)
                return await verify(task, sandbox, sandboxes)
        finally:
            await sandboxes.close()

    return asyncio.run(run())


def script(line: str) -> str:
    return f"#!/bin/sh\n{line}\n"


def test_a_number_is_the_verdict(tmp_path: Path, images: Path) -> None:
    verdict = judged(
        write_task(tmp_path / "t", tests=script("echo said; echo 0.25 >/logs/verifier/reward.txt; exit 1")), images
    )
    assert (verdict.reward, verdict.rewards, verdict.output) == (0.25, {"reward": 0.25}, "said")


def test_named_rewards_are_kept_and_go_before_the_text(tmp_path: Path, images: Path) -> None:
    tests = script(
        """echo 1 >/logs/verifier/reward.txt; echo '{"reward": 0.5, "style": 3}' >/logs/verifier/reward.json"""
    )
    verdict = judged(write_task(tmp_path / "t", tests=tests), images)
    assert (verdict.reward, verdict.rewards) == (0.5, {"reward": 0.5, "style": 3})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("echo boom; exit 3", r"the tests \(exit code 3: boom\) wrote no reward"),
        ("kill -9 $$", r"the tests \(exit code 137: .*\) wrote no reward"),
        ("echo good >/logs/verifier/reward.txt", "reward.txt is no reward: 'good"),
        ("mkdir /logs/verifier/reward.txt", "cannot be read"),
    ],
)
def test_tests_without_a_verdict_are_a_failure_of_the_infrastructure(
    tmp_path: Path, images: Path, line: str, told: str
) -> None:
    with pytest.raises(InfrastructureFailure, match=told) as caught:
        judged(write_task(tmp_path / "t", tests=script(line)), images)
    assert caught.value.part == "verifier"
    assert not isinstance(caught.value, VerifierOutOfTime)


@pytest.mark.parametrize(
    ("read", "content", "told"),
    [
        (from_text, b"nan", "is no reward"),
        (from_text, b"", "is no reward"),
        (from_text, b"1" * 100_000, "has 100000 bytes"),
        (from_text, b"2", "the reward 2 is not between 0 and 1"),
        (from_named, b'{"a": 1, "b": 0}', "none is named reward"),
        (from_named, b'{"reward": "1"}', "reward.json is no reward"),
    ],
)
def test_what_is_no_number_from_0_to_1_is_no_verdict(
    read: Callable[[bytes], dict[str, float]], content: bytes, told: str
) -> None:
    with pytest.raises(NoVerdict, match=told):
        reward_of(read(content))


DONE = {"solution/solve.sh": script("echo done >/app/answer")}
GRADED = script("grep -qx done answer && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt")
CRASHES = script("grep -qx done /app/answer || kill -9 $$; echo 1 >/logs/verifier/reward.txt")


@pytest.mark.parametrize(
    ("work", "tests", "told"),
    [
        ("rm -rf /logs; echo file >/logs", GRADED, ""),
        ("rm -rf /logs; ln -s /proc /logs", GRADED, ""),
        ("rm -f /bin/rm /usr/bin/rm", GRADED, "could not be made ready"),
        ("rm /bin/sh; cp /bin/false /bin/sh", GRADED, "could not be made ready"),
        ("echo wrong >answer", CRASHES, "exit code 137"),
        pytest.param(
            "echo loop >answer",
            script("grep -q loop answer && sleep 9; echo 1 >/logs/verifier/reward.txt"),
            "took more",
            marks=pytest.mark.deep,  # its whole time, twice
        ),
        (
            "echo pipe >answer",
            script("f=/logs/verifier/reward.txt; grep -q pipe answer && mkfifo $f || echo 1 >$f"),
            "not a regular file",
        ),
        ("head -c 40M /dev/zero >/app/full || :", GRADED, ""),
    ],
)
def test_work_that_the_tests_cannot_judge_is_worth_nothing(
    tmp_path: Path, images: Path, work: str, tests: str, told: str
) -> None:
    """An infrastructure failure is never a reward: the model cannot choose one instead of a bad mark."""
    seconds = 4 if told == "took more" else 120  # what does not wait for its end has time on a busy machine
    settings = f"[verifier]\ntimeout_sec = {seconds}\n[environment]\nstorage_mb = 32\n"
    verdict = judged(write_task(tmp_path / "t", settings, tests=tests, files=DONE), images, does(work))
    assert verdict.reward == 0
    assert told in verdict.output


SPARSE = "mv /bin/tar /bin/t; printf '#!/bin/sh\\nexec t -S $*' >/bin/tar; chmod +x /bin/tar"


@pytest.mark.parametrize(
    ("work", "told"),
    [
        pytest.param("head -c 66M /dev/zero >made.txt", "could not be fetched", marks=pytest.mark.deep),
        ("printf '#!/bin/sh\\necho no; exit 2' >/bin/tar; : >made.txt", "could not be packed"),
        ("printf '#!/bin/sh\\necho no >/tmp/.artifact.tar' >/bin/tar; : >made.txt", "packed wrongly"),
        (f"{SPARSE}; truncate -s 1T made.txt", "has holes"),
    ],
)
def test_artifacts_that_cannot_be_carried_are_worth_nothing(tmp_path: Path, images: Path, work: str, told: str) -> None:
    folder = write_task(tmp_path / "t", SEPARATE, tests=PASSES, files=DONE)
    verdict = judged(folder, images, does(work))
    assert (verdict.reward, told in verdict.output) == (0, True), verdict


def test_tests_that_failed_once_are_asked_again(tmp_path: Path, images: Path) -> None:
    tests = script("test -e /once || { : >/once; kill -9 $$; }; echo 0.5 >/logs/verifier/reward.txt")
    assert judged(write_task(tmp_path / "t", tests=tests), images).reward == 0.5


def test_tests_that_do_not_end_are_told_apart(tmp_path: Path, images: Path) -> None:
    folder = write_task(tmp_path / "t", "[verifier]\ntimeout_sec = 0.5\n", tests=script("sleep 60"))
    with pytest.raises(VerifierOutOfTime, match=r"test.sh' took more than 0.5 s"):
        judged(folder, images)


def test_a_reward_that_the_agent_wrote_is_none(tmp_path: Path, images: Path) -> None:
    agent = does("mkdir -p /logs/verifier && echo 1 >/logs/verifier/reward.txt")
    with pytest.raises(InfrastructureFailure, match="wrote no reward"):
        judged(write_task(tmp_path / "t", tests=script("true")), images, agent)


def test_what_the_agent_left_running_cannot_change_the_verdict(tmp_path: Path, images: Path) -> None:
    agent = does("(setsid sh -c 'while :; do echo 1 >/logs/verifier/reward.txt; done' >/dev/null 2>&1 &) ; sleep 0.1")
    tests = script("echo 0 >/logs/verifier/reward.txt; sleep 0.3")
    assert judged(write_task(tmp_path / "t", tests=tests), images, agent).reward == 0


def test_what_the_agent_put_among_the_tests_is_gone(tmp_path: Path, images: Path) -> None:
    agent = does("mkdir -p /tests && echo planted >/tests/conftest.py")
    tests = script("test -e /tests/conftest.py; echo $? >/logs/verifier/reward.txt")
    assert judged(write_task(tmp_path / "t", tests=tests), images, agent).reward == 1


def test_the_tests_run_in_the_place_and_with_the_variables_of_the_task(tmp_path: Path, images: Path) -> None:
    settings = (
        '[environment]\nworkdir = "/srv"\nenv = { A = "a" }\n[verifier]\nenv = { B = "${SECRET}-${MISSING:-else}" }\n'
    )
    tests = script('[ "$(pwd) $A $B" = "/srv a s-else" ]; echo $((1 - $?)) >/logs/verifier/reward.txt')
    folder = write_task(tmp_path / "t", settings, tests=tests, dockerfile="FROM base\nRUN mkdir /srv/x\n")
    assert judged(folder, images, lent=Lent({"SECRET": "s"})).reward == 1


def test_a_separate_verifier_sees_the_artifacts_alone(tmp_path: Path, images: Path) -> None:
    agent = does("""
    echo made >made.txt; echo other >other.txt; echo planted >/usr/bin/env
    mkdir folder; echo in >folder/in.txt; echo tmp >folder/x.tmp; ln -s /etc/passwd folder/link
    """)
    tests = script("""
    cat made.txt folder/in.txt; ls /app folder; wc -c </usr/bin/env | grep -qx 8 && echo planted
    echo 1 >/logs/verifier/reward.txt
    """)
    verdict = judged(write_task(tmp_path / "t", SEPARATE, tests=tests), images, agent)
    assert verdict.output.split() == ["made", "in", "/app:", "folder", "made.txt", "folder:", "in.txt"]


WHOLE = """
artifacts = [{ source = "/app", exclude = ["tests", "*.tmp"] }, "/etc/setting", "/srv/gone", "/srv/file", "/srv/link"]
[verifier]
environment_mode = "separate"
"""
BEFORE = r"""FROM base
WORKDIR /app
RUN mkdir -p full/in left file tests sub/tests /srv/gone /srv/file /srv/link; \
  for d in full full/in left file tests sub/tests /srv/gone /srv/file /srv/link; do echo before >$d/f; done; \
  for f in stays goes old runs ran folder link kept.tmp binary name /etc/setting; do echo before >$f; done; \
  echo before >"$(printf 'two\nlines\\and\377no text')"; chmod +x ran; ln name second; \
  for l in l-stays l-goes l-turns l-file; do ln -s stays $l; done; ln -s nowhere l-hangs
"""
WORK = r"""
rm goes second kept.tmp tests/f l-goes /etc/setting two*; rm -r full left/f file sub /srv/gone /srv/file /srv/link
mv old new; chmod +x runs; chmod -x ran; rm folder link; mkdir folder; echo in >folder/f; ln -s stays link
echo file >file; echo file >/srv/file; chmod +x /srv/file; ln -s /tests /srv/link; printf 'n\0\377' >binary
ln -sf /tests l-turns; rm l-file; echo file >l-file
"""
FOUND = script(
    r"""find /app /srv -mindepth 1 -printf '%y %m %P\n'; ls /etc/set*
    for f in file l-file name new folder/f; do echo $f: $(cat $f); done; cat /srv/file; wc -c binary
    echo 1 >/logs/verifier/reward.txt"""
)
LEFT = (
    "f 644 binary|f 644 file|f 644 kept.tmp|f 644 l-file|f 644 name|f 644 new|f 644 ran|f 644 stays|f 755 runs|"
    "d 755 folder|f 644 folder/f|d 755 left|d 755 tests|f 644 tests/f|d 755 sub|d 755 sub/tests|f 644 sub/tests/f|"
    "l 777 l-hangs|l 777 l-stays|f 755 file|file|file: file|l-file: file|name: before|new: before|folder/f: in|"
    "3 binary|ls: cannot access '/etc/set*': No such file or directory"
)


def test_a_separate_verifier_finds_the_files_as_the_agent_left_them(tmp_path: Path, images: Path) -> None:
    """What is gone, renamed or of another kind now is no more as it was; what is excluded is as nobody touched it."""
    folder = write_task(tmp_path / "t", WHOLE, tests=FOUND, dockerfile=BEFORE)
    verdict = judged(folder, images, does(WORK))
    assert sorted(verdict.output.splitlines()) == sorted(LEFT.split("|"))


def test_a_separate_verifier_may_have_an_image_of_its_own(tmp_path: Path, images: Path) -> None:
    """What the agent took away goes from it, too, and what it has beside that stays."""
    before = "FROM base\nWORKDIR /app\nRUN mkdir folder; echo both >folder/both\n"
    files = {"tests/Dockerfile": f"{before}RUN echo own >folder/own\nWORKDIR /elsewhere\n"}
    tests = script("cat /app/folder/*; pwd; echo 1 >/logs/verifier/reward.txt")
    folder = write_task(tmp_path / "t", SEPARATE, tests=tests, files=files, dockerfile=before)
    assert judged(folder, images).output.split() == ["both", "own", "/elsewhere"]
    for work in ("rm folder/both", "rm -r folder"):
        assert judged(folder, images, does(work)).output.split() == ["own", "/elsewhere"]


def test_hooks_run_before_the_tests_see_anything(tmp_path: Path, images: Path) -> None:
    settings = f'{SEPARATE}[[verifier.collect]]\ncommand = "cp seen.txt made.txt"\n'
    tests = script("cat made.txt; echo 1 >/logs/verifier/reward.txt")
    verdict = judged(write_task(tmp_path / "t", settings, tests=tests), images, does("echo collected >seen.txt"))
    assert verdict.output == "collected"


HEALTH = '[environment.healthcheck]\ncommand = "{}"\ninterval_sec = 0.01\nretries = {}\n'


def test_the_agent_begins_once_the_task_is_well(tmp_path: Path, images: Path) -> None:
    settings = HEALTH.format("echo x >>tries; test $(wc -l <tries) -ge 3", 3)
    tests = script("test $(wc -l <tries) = 3; echo $((1 - $?)) >/logs/verifier/reward.txt")
    assert judged(write_task(tmp_path / "t", settings, tests=tests), images).reward == 1


def test_a_task_that_does_not_get_well_is_a_failure_of_its_service(tmp_path: Path, images: Path) -> None:
    with pytest.raises(InfrastructureFailure, match="failed 2 times: ill") as caught:
        judged(write_task(tmp_path / "t", HEALTH.format("echo ill; exit 1", 2)), images)
    assert caught.value.part == "service"


class OutOfMeans:
    """A sandbox in which everything is well, but that this machine is out of something when it is asked for `what`."""

    def __init__(self, what: str, number: int) -> None:
        self._what, self._number = what, number

    def _meet(self, what: str) -> None:
        if what == self._what:
            raise OSError(self._number, "this machine has no more of them", what)

    async def run(self, *_: object, **__: object) -> CommandResult:
        return CommandResult(0, b"", b"", 0.0, 0.0)

    async def end_commands(self) -> None: ...

    async def copy_in(self, *_: object) -> None:
        self._meet("copy_in")

    async def read(self, _: str) -> bytes:
        self._meet("read")
        return b"1"

    async def write(self, *_: object) -> None:
        self._meet("write")

    async def __aenter__(self) -> "OutOfMeans":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def open(self, _: object) -> "OutOfMeans":
        return self


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("read", {"answer": JudgedAnswer("reasoning-gym", '["leg_counting", 1, 1, {}]', 0, "/workspace/answer.txt")}),
        ("read", {"tests": Path("/tests")}),
        ("copy_in", {"tests": Path("/tests")}),
        ("read", {"tests": Path("/tests"), "artifacts": (Artifact("/made"),), "verifier_spec": SandboxSpec()}),
        ("read", {}),
    ],
)
def test_a_machine_out_of_means_gives_no_verdict_on_the_work(number: int, what: str, fields: dict[str, Any]) -> None:
    task = Task("t", "Work.", "d", SandboxSpec(), agent_timeout_seconds=1, verifier_timeout_seconds=1, **fields)
    sandbox: Any = OutOfMeans(what, number)
    with pytest.raises(OSError, match="this machine has no more of them"):
        asyncio.run(verify(task, sandbox, sandbox))
