"""Fixtures: events to store."""

from collections.abc import Callable

import made_events
import pytest

from core.events import Completion, Outcome


@pytest.fixture
def completion() -> Callable[..., Completion]:
    return made_events.completion


@pytest.fixture
def outcome() -> Callable[..., Outcome]:
    return made_events.outcome
