"""One stack, shared by all tests of it."""

from collections.abc import Iterator

import pytest
from compose_stack import Stack, require_compose

from core.ids import ANCHOR


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[Stack]:
    require_compose(engine=True)
    stack = Stack()
    stack.build()
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture
def stack(shared_stack: Stack) -> Stack:
    """Return the stack once it is healthy, whatever the previous test did to it."""
    shared_stack.wait_ready()
    return shared_stack


@pytest.fixture
def untaught_stack(shared_stack: Stack) -> Stack:
    """Return a stack that has learned nothing yet."""
    if shared_stack.newest_version() != ANCHOR.version:
        shared_stack.remove()
        shared_stack.up()
    shared_stack.wait_ready()
    return shared_stack
