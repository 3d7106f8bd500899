"""One stack for all tests of it."""

from collections.abc import Iterator

import pytest
from compose_stack import Stack, require_compose

from core.ids import ANCHOR


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[Stack]:
    require_compose(engine=True)
    stack = Stack()
    stack.compose("build", timeout_s=1500)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture
def stack(shared_stack: Stack) -> Stack:
    """Well, whatever the test before has done to it."""
    shared_stack.wait_ready()
    return shared_stack


@pytest.fixture
def untaught_stack(shared_stack: Stack) -> Stack:
    """One that knows no users yet."""
    if shared_stack.newest_version() != ANCHOR:
        shared_stack.remove()
        shared_stack.up()
    shared_stack.wait_ready()
    return shared_stack
