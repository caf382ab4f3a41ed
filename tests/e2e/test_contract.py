"""A client made from nothing but ``/openapi.json`` finds no answer that the description does not allow, and no 500.

Schemathesis makes the requests: right ones, and ones that are wrong in a field, a header, a path or a method.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from stepwell.tests.e2e.serving import Server, serving
from stepwell.transports.http.operations import OPERATIONS

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra `dev`")

SETTINGS: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": list(HealthCheck),
}
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")

LEFT_OUT = ("POST /admin/pause", "POST /admin/drain", "GET /admin/events")
"""After these nothing else would be answered, and this one's answer does not end."""
ASKED = [each for each in OPERATIONS if each not in LEFT_OUT]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--set", "server.max_streams=64", step_us=20) as started:
        yield started


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")


def hold_to_it(schema: Any, operation: str, examples: int) -> None:
    method, path = operation.split(" ")
    checks = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    found = schema[path.replace(":path}", "}")][method]
    modes = [schemathesis.GenerationMode.POSITIVE]
    if OPERATIONS[operation].body is not None or OPERATIONS[operation].query:  # a path may be anything
        modes.append(schemathesis.GenerationMode.NEGATIVE)
    for mode in modes:

        @settings(max_examples=examples, **SETTINGS)
        @given(case=found.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            case.call_and_validate(checks=checks, timeout=60)

        ask()


@pytest.mark.parametrize("operation", ASKED)
def test_no_answer_but_those_described(schema: Any, server: Server, operation: str) -> None:
    hold_to_it(schema, operation, 8)
    server.until(lambda: server.idle)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ASKED)
def test_no_answer_but_those_described_for_long(schema: Any, server: Server, operation: str) -> None:
    hold_to_it(schema, operation, 200)
    server.until(lambda: server.idle)
