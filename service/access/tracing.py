"""Trace requests with OpenTelemetry. Each request creates one server span, which is a child of the span in its W3C
`traceparent` header.

Attributes follow the semantic conventions for HTTP and generative AI. They do not include the content of requests. The
OTEL_* environment variables configure the exporter and sampling. Without `RFA_TRACING`, OpenTelemetry is not imported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Scope

from rfa.service.access.request_log import Record
from rfa.service.settings import ConfigurationError, Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

# An unreachable collector must not delay the exit of the process.
FLUSH_SECONDS: Final = 2.0
WEBSOCKET_INTERNAL_ERROR: Final = 1011
NANOSECONDS: Final = 1_000_000_000
PROPAGATED: Final = (b"traceparent", b"tracestate")


def open_tracing(settings: Settings) -> Tracing | None:
    """Return a `Tracing` object if the settings enable tracing. Otherwise, return None.

    Raises:
        ConfigurationError: If tracing is enabled and the OpenTelemetry packages are not installed.
    """
    if not settings.server.tracing:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        raise ConfigurationError(
            "RFA_TRACING requires optional packages; install them with pip install 'rfa-server[tracing]'"
        ) from None
    return Tracing(OTLPSpanExporter)


class Tracing:
    """Records spans for one application, between `start` and `stop`. The global tracer provider is not used.

    Args:
        make_exporter: Function that creates the exporter of the spans.
    """

    def __init__(self, make_exporter: Callable[[], SpanExporter]) -> None:
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._make_exporter = make_exporter
        self._kind = SpanKind.SERVER
        self._error = StatusCode.ERROR
        self._propagator = TraceContextTextMapPropagator()
        self._tracer: Any = None
        self._processor: Any = None

    def start(self) -> None:
        """Start recording spans. A thread exports them in batches."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        has_name = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        resource = Resource.create({} if has_name else {"service.name": "rfa-server"})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(self._make_exporter())
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("rfa-server")

    def stop(self) -> None:
        """Export the remaining spans, for at most `FLUSH_SECONDS`."""
        processor, self._processor, self._tracer = self._processor, None, None
        if processor is not None:
            flushing = threading.Thread(target=processor.shutdown, name="rfa-trace-flush", daemon=True)
            flushing.start()
            flushing.join(FLUSH_SECONDS)

    def begin(self, scope: Scope, record: Record) -> Span | None:
        """Start the span of a request, or return None if spans are not being recorded."""
        if self._tracer is None:
            return None
        parents, states = (
            [value.decode("latin-1") for name, value in scope["headers"] if name == propagated]
            for propagated in PROPAGATED
        )
        # W3C Trace Context: a request with several parents starts a new trace.
        carrier = {"traceparent": parents[0], "tracestate": ",".join(states)} if len(parents) == 1 else {}
        context = self._propagator.extract(carrier)
        span: Span = self._tracer.start_span(record.method, context=context, kind=self._kind)
        record.trace_id = f"{span.get_span_context().trace_id:032x}"
        return span

    def end(self, span: Span, scope: Scope, record: Record) -> None:
        """Set the attributes of the span of a request, and end it."""
        if span.is_recording():
            if record.route != "other":
                span.update_name(f"{record.method} {record.route}")
            for name, value in _attributes(scope, record).items():
                if value is not None:
                    span.set_attribute(name, value)
            if _failure(record):
                span.set_status(self._error)
            if record.output_tokens and record.seconds_to_first_body is not None and record.is_streamed:
                start: int = span.start_time  # type: ignore[attr-defined]
                span.add_event("gen_ai.first_token", timestamp=start + int(record.seconds_to_first_body * NANOSECONDS))
        span.end()


def _failure(record: Record) -> str | None:
    """Return the status or close code of a request that failed because of an error of the server. Return None
    otherwise: rejected requests are errors of the client."""
    if record.close_code == WEBSOCKET_INTERNAL_ERROR:
        return str(WEBSOCKET_INTERNAL_ERROR)
    return str(record.status) if record.status is not None and record.status >= 500 else None


def _attributes(scope: Scope, record: Record) -> dict[str, Any]:
    is_websocket = record.method == "WEBSOCKET"
    generates = record.output_tokens is not None
    return {
        "http.request.method": {"WEBSOCKET": "GET", "other": "_OTHER"}.get(record.method, record.method),
        "http.route": record.route if record.route != "other" else None,
        "http.response.status_code": record.status,
        "http.request.body.size": None if is_websocket else record.bytes_in,
        "http.response.body.size": None if is_websocket else record.bytes_out,
        "url.scheme": scope.get("scheme"),
        "error.type": _failure(record),
        "gen_ai.operation.name": "text_completion" if generates else None,
        "gen_ai.response.model": record.model if generates else None,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.response.finish_reasons": record.finish_reasons or None,
        "gen_ai.response.time_to_first_chunk": record.seconds_to_first_body
        if record.is_streamed and generates
        else None,
        "rfa.model": record.model,
        "rfa.observations": record.observations,
        "rfa.request_id": record.id,
        "rfa.tenant": record.tenant or None,
        "rfa.websocket.close_code": record.close_code,
        "rfa.complete": record.is_complete,
    }
