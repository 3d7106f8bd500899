"""Requests that are made from the service's own description: none of them is the service's fault."""

from collections.abc import Iterator
from typing import Any

import schemathesis
from api_harness import Service
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error

_NEVER_ENDS = "/v1/rewards/stream"
_MAKES_KEYS = "/v1/keys"  # after which requests without one are refused
bounded = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def operations(service: Service) -> Iterator[Any]:
    for found in schemathesis.openapi.from_url(f"{service.url}/openapi.json").get_all_operations():
        operation = found.ok()
        if operation.path not in (_NEVER_ENDS, _MAKES_KEYS):
            yield operation


def test_no_request_is_the_services_fault(quick_service: Service) -> None:
    asked = []
    for operation in operations(quick_service):

        @bounded
        @given(case=operation.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=[not_a_server_error])

        ask()
        asked.append(operation.path)
    assert {"/v1/chat/completions", "/v1/responses", "/v1/messages", "/infill", "/v1/feedback"} <= set(asked)
