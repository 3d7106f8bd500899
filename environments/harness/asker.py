"""What each request of an episode says of who asks."""

import uuid

from environments.harness.harness import Endpoint, Harness
from environments.tasks.task import Task

SESSION = "x-session-id"


def asker_headers(harness: Harness, task: Task, endpoint: Endpoint, workload: str) -> dict[str, str]:
    """Return the headers of an episode's requests. What the endpoint says goes before what is said here.

    Where it names no session, the episode has one of its own."""
    told = {
        SESSION: f"episode-{uuid.uuid4()}",
        "x-onward-harness": f"{harness.name}@{harness.version}",
        "x-onward-environment": "simulated",
        "x-onward-workload": workload,
    }
    if task.image is not None:
        told["x-onward-environment-image"] = task.image
    if endpoint.api_key is not None:
        told["authorization"] = f"Bearer {endpoint.api_key}"
    return told | {name.lower(): value for name, value in endpoint.headers.items()}
