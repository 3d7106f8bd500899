"""The sessions of test_replicas.py with live state in a real Redis, and a local part in each replica."""

from collections.abc import Iterator

import pytest
from api_harness import Service, serve_replicas
from own_redis import OwnRedis, own_redis
from test_replicas import (  # noqa: F401 - collected here
    replicas,
    test_a_conversation_goes_on_at_another_replica,
    test_a_rewritten_history_is_rendered_afresh_and_starts_a_branch,
    test_edit_undo_and_regenerate_are_branches,
    test_of_two_replicas_at_once_one_continues_and_one_branches,
    test_whatever_way_a_tree_grows_its_prompts_continue,
)

from api.live_state.memory import MemoryLiveState
from api.live_state.redis_live_state import RedisLiveState


class ForgetfulRedis(RedisLiveState):
    """A live state that can lose Redis and this replica's local part; the other replica keeps its own."""

    server: OwnRedis

    def forget(self) -> None:
        self.server.flush()
        self._local = MemoryLiveState()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    directory = tmp_path_factory.mktemp("api")
    with own_redis(directory / "redis") as server:
        ForgetfulRedis.server = server
        chosen = server.settings()
        states = [ForgetfulRedis(chosen, forgotten_s=0) for _ in range(2)]
        with serve_replicas(directory / "service", 2, live_states=states) as services:
            for service in services:
                service.policy.context_length = 100_000
            yield services
            assert all(state.state == "ok" for state in states), "and it was Redis that was asked"
