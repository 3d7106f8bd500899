"""A client of the Onward service: sessions for an `openai` client, and feedback.

Feedback is neither lost, whatever is down, nor counted twice."""

from onward_client.answers import inference_id_of
from onward_client.async_client import AsyncOnward
from onward_client.client import Onward
from onward_client.errors import OnwardError, QueueFull, RequestRefused, Unreachable
from onward_client.queue import Refusal
from onward_client.session import Session

__all__ = [
    "AsyncOnward",
    "Onward",
    "OnwardError",
    "QueueFull",
    "Refusal",
    "RequestRefused",
    "Session",
    "Unreachable",
    "inference_id_of",
]
