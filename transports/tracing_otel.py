"""Spans by OpenTelemetry's SDK, sent to a collector by a thread of its own; imported only where traces are wanted."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import stepwell
from stepwell.core.config_admin import TelemetryConfig
from stepwell.core.errors import UserError
from stepwell.transports.tracing import Attributes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

PATIENCE_S = 3.0
"""For what waits to be sent when the server ends."""


class OtelSpans:
    """See ``tracing.Spans``.  Raises ``UserError`` without the extra ``otel``."""

    def __init__(self, config: TelemetryConfig, exporter: SpanExporter | None = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource  # lazy: an extra
            from opentelemetry.sdk.trace import TracerProvider  # lazy: the same
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # lazy: the same
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # lazy: the same
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # lazy: the same
        except ModuleNotFoundError as error:
            raise UserError(
                f"traces need the extra `otel`: pip install 'stepwell[otel]' (no {error.name})",
                field="telemetry.traces",
            ) from None
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(config.sample)),
            resource=Resource.create({"service.name": config.service_name, "service.version": stepwell.__version__}),
            shutdown_on_exit=False,  # ``close`` does, and has a limit
        )
        queue = config.span_queue
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter or _to_collector(config), max_queue_size=queue, max_export_batch_size=min(queue, 512)
            )
        )
        self._tracer = self._provider.get_tracer("stepwell", stepwell.__version__)
        self._extract = TraceContextTextMapPropagator().extract

    def emit(
        self,
        name: str,
        carrier: Mapping[str, str],
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        events: Sequence[tuple[str, int, Attributes]],
        error: str,
    ) -> None:
        """Whether it is sent the sampler says; it never waits."""
        from opentelemetry.trace import SpanKind, Status, StatusCode  # lazy: an extra

        context = self._extract(dict(carrier))
        span = self._tracer.start_span(
            name, context=context, kind=SpanKind.SERVER, attributes=attributes, start_time=start_ns
        )
        if span.is_recording():
            for event, at_ns, about in events:
                span.add_event(event, about, at_ns)
            if error:
                span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_ns)

    def close(self) -> None:
        """Send what waits, for ``PATIENCE_S`` at most: a collector that is gone holds nobody up."""
        sending: Any = threading.Thread(target=self._provider.shutdown, daemon=True, name="spans-close")
        sending.start()
        sending.join(PATIENCE_S)


def _to_collector(config: TelemetryConfig) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # lazy: an extra
    except ModuleNotFoundError as error:
        raise UserError(
            f"traces need the extra: pip install 'stepwell[otel]' (no {error.name})", field="telemetry.traces"
        ) from None
    return OTLPSpanExporter(endpoint=config.traces, timeout=config.timeout_s)
