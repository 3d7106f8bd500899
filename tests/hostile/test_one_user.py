"""One user against a canary and the monitors of a running service: she asks more than all others together.

Nothing is promoted, rolled back or held by her alone, and she hides from nobody what becomes of others."""

import asyncio
from collections.abc import Iterator
from itertools import chain

import pytest
from hostile_user import Turn, live
from hostile_world import CROWD_KEY, PLUGIN_KEY, SETTINGS, World
from publisher import Publisher
from service_tree import Service, wait_for

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(900)]
USERS = 32  # each drawn into an arm: with half as many, one run of thirteen had too few in the canary's to decide
MIN_USERS = 3
HORIZON_TURNS, GUARD_TURNS, WINDOW_TURNS = 60, 60, 50
FLOOD = 3 * HORIZON_TURNS
DECIDED_S = 120.0
LOOKS = 4  # of whoever decides: the first may have begun before, and one takes no more than so many records
AT_A_TIME = 8
OTHERS, HERS = "others", "of-mallory"
OF_THE_TEST = {
    "learner.batch.min_turns": 1_000_000,  # versions come from the test alone
    "learner.batch.turns": 1_000_000,
    "release.canary.enabled": "on",
    "release.canary.share": 0.5,
    "release.canary.min_users": MIN_USERS,
    "release.canary.switch_s": 0,
    "release.canary.maturity_s": 0.1,
    "release.canary.horizon_turns": HORIZON_TURNS,
    "release.canary.guard_turns": GUARD_TURNS,
    "release.canary.slower_times": 100.0,  # all of this shares two cores
    "release.gate.max_kl": 1e9,
    "release.gate.max_entropy_share": 1.0,
    "monitors.every_s": 0.2,
    "monitors.window_turns": WINDOW_TURNS,
    "monitors.reference_turns": WINDOW_TURNS,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("one-user")
    home = directory / "service"
    home.mkdir()
    (home / "onward.toml").write_text(SETTINGS)
    service = Service(home, OF_THE_TEST)
    service.start()
    try:
        yield World(service, directory)
    finally:
        service.stop()


@pytest.fixture(scope="module")
def publisher(world: World) -> Iterator[Publisher]:
    with Publisher(world.service.directory, world.service.overrides) as made:
        yield made


def test_she_neither_promotes_a_canary_nor_has_it_taken_back(world: World, publisher: Publisher) -> None:
    """She rejects all that it says, three times as often as the horizon has turns; others like both alike."""
    canary = _begin(world, publisher)
    _others(world, 2)
    she = _in_the_lane(world, canary)
    _ask(world, PLUGIN_KEY, [Turn(she, accepts=False, workload=(None, HERS)[n % 2]) for n in range(FLOOD)])
    _wait_until_seen(world, canary)
    assert _state(world, canary) == "canary"
    assert world.get("/v1/releases")["held_by"] == []
    while _state(world, canary) == "canary":
        _others(world, 2)
        _wait_until_seen(world, canary)
    assert _state(world, canary) == "live"


def test_she_hides_a_broken_canary_from_no_guard(world: World, publisher: Publisher) -> None:
    canary = _begin(world, publisher, spoil=True)
    she = _in_the_lane(world, canary)
    hers = [Turn(she, accepts=True, max_tokens=1) for _ in range(2 * GUARD_TURNS)]
    for _ in range(8):
        _others(world, 1, max_tokens=64)
        _ask(world, PLUGIN_KEY, hers)
        _wait_until_seen(world, canary)
        if _state(world, canary) != "canary":
            break
    assert _state(world, canary) == "rolled_back"


def test_she_has_no_monitor_look_away(world: World) -> None:
    """Not by being the first in a workload, nor by asking more than all others while their answers become longer."""
    hers = [Turn("mallory", accepts=True, max_tokens=2, workload=OTHERS) for _ in range(2 * WINDOW_TURNS)]
    _ask(world, CROWD_KEY, hers)
    _others(world, 5, max_tokens=2, workload=OTHERS)
    for _ in range(5):
        _others(world, 1, max_tokens=32, workload=OTHERS)
        _ask(world, CROWD_KEY, hers)
    wait_for(lambda: "length" in _alarms(world), DECIDED_S, "an alarm of longer answers")


def _begin(world: World, publisher: Publisher, *, spoil: bool = False) -> int:
    """Publish a version, as good as what it follows or broken, and return its number once it is a canary."""
    version = publisher.publish(scale=1e-6, spoil=spoil)
    wait_for(lambda: _state(world, version) == "canary", DECIDED_S, "a canary")
    return version


def _others(world: World, each: int, max_tokens: int = 6, workload: str | None = None) -> None:
    """Have every user ask so often; half of them like all answers, and half none, whatever version it is."""
    turns = chain.from_iterable(
        [Turn(f"user-{number}", number % 2 == 0, max_tokens, workload) for number in range(USERS)] for _ in range(each)
    )
    _ask(world, CROWD_KEY, turns)


def _in_the_lane(world: World, canary: int) -> str:
    """Return a name of hers under which the canary answers."""
    for number in range(100):
        name = f"mallory-{number}"
        if _ask(world, PLUGIN_KEY, [Turn(name, accepts=False)]) == [canary]:
            return name
    raise AssertionError("the canary answers nobody")


def _ask(world: World, key: str, turns: Iterator[Turn] | list[Turn]) -> list[int]:
    return asyncio.run(live(world.service.url, key, turns, AT_A_TIME))


def _wait_until_seen(world: World, canary: int) -> None:
    """Wait until all that was said is rewarded, and whoever decides has looked at it or has decided."""
    world.wait_until_read()
    seen = _judgements(world)
    wait_for(
        lambda: _judgements(world) >= seen + LOOKS or _state(world, canary) != "canary", DECIDED_S, "looks at a canary"
    )


def _judgements(world: World) -> int:
    """Return how often releases were judged by their turns since the service started."""
    return int(world.sample("onward_release_judgements_total"))


def _state(world: World, version: int) -> str | None:
    return next((each["state"] for each in world.get("/v1/policies")["data"] if each["version"] == version), None)


def _alarms(world: World) -> list[str]:
    return [alarm["monitor"] for alarm in world.get("/v1/alarms")["alarms"]]
