"""What the Python client's queue sends, and in which order, while some of it fails."""

from onward_client.delivery import Acknowledged, Later
from onward_client.queue import Queue
from onward_client.requests import feedback_request, withdrawal_request
from onward_client.sending import Sending


def sent_in_a_round(sending: Sending, failing: str | None = None) -> list[str]:
    """Return the ids of what a round sends; the service fails at one of them, and takes all others."""
    steps, sent = sending.round(), []
    try:
        request = next(steps)
        while True:
            sent.append(request.request_id)
            fails = request.request_id == failing
            request = steps.send(Later("500: the store is away", of_all=False) if fails else Acknowledged())
    except StopIteration:
        return sent


def test_nothing_overtakes_what_it_withdraws_or_supersedes() -> None:
    queue = Queue(None, 10)
    first, other = (feedback_request("i", metric="accepted", value=True) for _ in range(2))
    amendment = feedback_request("i", metric="accepted", value=False, supersedes=first.request_id)
    withdrawals = [withdrawal_request(each.request_id) for each in (first, amendment, other)]
    told = [first, amendment, *withdrawals[:2], other, withdrawals[2]]
    for request in told:
        queue.put(request)
    sending = Sending(queue)
    assert sent_in_a_round(sending, failing=first.request_id) == [
        each.request_id for each in (first, other, withdrawals[2])
    ]
    assert sending.problem == "500: the store is away"
    assert sent_in_a_round(sending) == [request.request_id for request in told[:4]]
    assert len(queue) == 0
