"""The documentation of rewards agrees with the code."""

import re
import tomllib
from pathlib import Path
from types import ModuleType

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "rewards.md").read_text()


def test_its_example_comes_out_as_it_says(lab: ModuleType) -> None:
    found = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    spec = lab.RewardSpec.model_validate(tomllib.loads(found[1]))
    events = lab.Events()
    turn = events.turn("s", 0)
    passed = events.outcome(turn, "tests_passed", True, 3)
    accepted = events.outcome(turn, "accepted", True, 9)
    log = [turn, passed, accepted, events.amendment(passed, False, 70), events.withdrawal(accepted, 80)]
    rewards = lab.score(spec, log, until=lab.at(600))
    told = re.findall(r"\| (\d+) s \|.*\| revision (\d): (-?[\d.]+)\b", TEXT)
    assert [
        (str(int((reward.decided_at - lab.START).total_seconds())), str(reward.revision), str(reward.value))
        for reward in rewards
    ] == told
    assert [reward.final for reward in rewards] == [True, True, False, True]
