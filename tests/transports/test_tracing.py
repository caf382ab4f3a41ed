"""One span a request: its parent, its events in order, its numbers; sent to a collector, and in nobody's way."""

from __future__ import annotations

import gzip
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from stepwell.tests.transports.house import Call, chat, idle, make_service, until, visit

pytest.importorskip("opentelemetry.sdk", reason="needs the extra `otel`")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `otel`")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # isort: skip
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # isort: skip
from opentelemetry.trace import SpanKind, StatusCode  # isort: skip
from starlette.testclient import TestClient  # isort: skip
from starlette.types import ASGIApp  # isort: skip
from stepwell.core.config_admin import TelemetryConfig  # isort: skip
from stepwell.transports.http.app import create_app  # isort: skip
from stepwell.transports.service import Service  # isort: skip
from stepwell.transports.tracing import Tracing  # isort: skip
from stepwell.transports.tracing_otel import OtelSpans  # isort: skip

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


def traced(exporter: Any, **more: Any) -> tuple[Service, Tracing]:
    sample = more.pop("sample", 1.0)
    service = make_service(telemetry={"traces": "http://nowhere.invalid", "sample": sample}, **more)
    return service, Tracing(service, OtelSpans(TelemetryConfig(sample=sample), exporter))


def spans_after(service: Service, exporter: InMemorySpanExporter, *bodies: dict[str, Any], **more: Any) -> list[Any]:
    """What was sent once all ``bodies`` were answered and the server has closed."""
    with TestClient(create_app(service), raise_server_exceptions=False) as http:
        for body in bodies:
            http.post(body.pop("path", "/v1/chat/completions"), json=body, **more)
    return list(exporter.get_finished_spans())


def test_a_request_is_one_span_under_its_clients_with_all_that_happened_to_it() -> None:
    exporter = InMemorySpanExporter()
    service, tracing = traced(exporter)
    (span,) = spans_after(service, exporter, chat("hello there", seed=7, max_tokens=6), headers=SENT)
    assert (span.name, span.kind) == ("chat echo", SpanKind.SERVER)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert [event.name for event in span.events] == ["queued", "admit", "first_token", "finish"]
    times = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
    assert times == sorted(times)
    about = dict(span.attributes)
    assert (about["gen_ai.operation.name"], about["gen_ai.provider.name"]) == ("chat", "stepwell")
    assert (about["gen_ai.request.model"], about["gen_ai.request.max_tokens"]) == ("echo", 6)
    assert (about["gen_ai.usage.input_tokens"], about["gen_ai.usage.output_tokens"]) == (11, 6)
    assert about["gen_ai.response.finish_reasons"] == ("length",)
    assert about["gen_ai.request.seed"] == 7
    latencies = {name.rpartition(".")[2]: value for name, value in about.items() if ".latency." in name}
    assert set(latencies) == {
        *("e2e", "time_in_queue", "time_to_first_token"),
        *("time_in_model_prefill", "time_in_model_decode", "time_in_model_inference"),
    }
    assert latencies["e2e"] >= latencies["time_to_first_token"] >= latencies["time_in_queue"] >= 0
    assert (span.status.status_code, tracing.open) == (StatusCode.UNSET, 0)
    assert span.resource.attributes["service.name"] == "stepwell"


def test_choices_share_a_span_and_a_text_is_another_operation() -> None:
    exporter = InMemorySpanExporter()
    service, _ = traced(exporter)
    text = {"path": "/v1/completions", "prompt": ["ab", "cd"], "max_tokens": 2}
    chosen, whole = spans_after(service, exporter, chat("hello", n=3), text)
    assert chosen.attributes["gen_ai.response.finish_reasons"] == ("stop",) * 3
    assert [event.name for event in chosen.events].count("finish") == 3
    assert whole.attributes["gen_ai.operation.name"] == "text_completion"
    assert whole.attributes["gen_ai.usage.input_tokens"] == 4


def test_preemptions_are_events_of_the_span() -> None:
    """A pool that does not hold both."""
    exporter = InMemorySpanExporter()
    service, tracing = traced(
        exporter, step_us=1000, memory={"pages": 12, "host_pages": 12}, scheduler={"policy": "swap"}
    )
    calls = [Call("/v1/chat/completions", chat("x" * 20)) for _ in range(2)]

    async def both(app: ASGIApp) -> None:
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.run, app)

    visit(service, both)
    spans = exporter.get_finished_spans()
    names = [event.name for span in spans for event in span.events]
    assert len(spans) == 2
    assert names.count("preempt") == names.count("resume") + (names.count("admit") - 2) > 0
    assert tracing.open == 0


def test_who_leaves_and_who_is_refused_has_a_span_too() -> None:
    exporter = InMemorySpanExporter()
    service, tracing = traced(exporter, step_us=500, lengths={1: 10_000}, memory={"pages": 4000})
    call = Call("/v1/chat/completions", chat("hello", stream=True))

    async def leave(app: ASGIApp) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.run, app)
            await until(lambda: len(call.parts) > 2)
            call.left.set()
        await until(lambda: tracing.open == 0)

    visit(service, leave)
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert span.status.status_code is StatusCode.UNSET
    exporter = InMemorySpanExporter()
    service, _ = traced(exporter, scheduler={"max_waiting": 1})
    spans = spans_after(service, exporter, chat("hello", n=4))
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR]
    assert "refused: queue_full" in spans[0].status.description


@pytest.mark.parametrize(("sample", "headers", "sent"), [(0.0, {}, 0), (0.0, SENT, 1), (1.0, {}, 1)])
def test_a_client_decides_for_its_request_and_the_share_for_all_others(
    sample: float, headers: dict[str, str], sent: int
) -> None:
    exporter = InMemorySpanExporter()
    service, _ = traced(exporter, sample=sample)
    assert len(spans_after(service, exporter, chat("hello"), headers=headers)) == sent


# ------------------------------------------------------------------------------------------------ the wire


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what an OTLP exporter sends."""

    got: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        message = ExportTraceServiceRequest()
        message.ParseFromString(body)
        self.got.append(message)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    got: list[ExportTraceServiceRequest] = []
    handler = type("Mine", (Collector,), {"got": got})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", got
        server.shutdown()
        thread.join()


def test_spans_reach_a_collector(collector: tuple[str, list[ExportTraceServiceRequest]]) -> None:
    url, got = collector
    service = make_service(telemetry={"traces": url})
    Tracing(service, OtelSpans(service.config.telemetry))
    with TestClient(create_app(service)) as http:
        for _ in range(3):
            http.post("/v1/chat/completions", json=chat("hello"))
    spans = [span for each in got for part in each.resource_spans for scope in part.scope_spans for span in scope.spans]
    assert [span.name for span in spans] == ["chat echo"] * 3
    assert {event.name for event in spans[0].events} == {"queued", "admit", "first_token", "finish"}


def test_nothing_of_it_is_imported_where_it_is_off() -> None:
    code = (
        "import sys, stepwell.cli.serve, stepwell.transports.http.app, stepwell.transports.tracing\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("broken", ["begun", "over", "observe", "_ended"])
def test_tracing_that_fails_holds_up_nobody(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is answered, and what was reserved for it comes back."""

    def fails(*told: object) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(Tracing, broken, fails)
    service, _ = traced(InMemorySpanExporter(), gateway={"concurrent": 1})
    with TestClient(create_app(service)) as http:
        for stream in (False, True, False):
            assert http.post("/v1/chat/completions", json=chat("hello", stream=stream)).status_code == 200
        assert idle(service)
