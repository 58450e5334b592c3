"""Spans of OpenTelemetry for requests, if the application has it and the setting ``tracing`` is on.

A span has the name of the command, where the broker is, and how the request failed. It never has a key or a value. Its
parent is what is current where the request is made. The W3C trace context goes with the request as the user properties
``traceparent`` and ``tracestate`` (W3C Trace Context: MQTT, 3): the official SDKs send none, so it is off by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from statestore_client.errors import SettingsError, StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.commands import Command

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from statestore_client.core.request import RequestSpan


def tracer(settings: ConnectionSettings) -> Callable[[Command], RequestSpan]:
    """What begins the span of a request. Raises SettingsError without ``opentelemetry-api``."""
    try:
        from opentelemetry import trace
    except ImportError:
        raise SettingsError("tracing needs opentelemetry-api: pip install 'statestore-client[tracing]'") from None
    source = trace.get_tracer("statestore_client")
    where: dict[str, str | int] = {"server.address": settings.host, "server.port": settings.port}

    def begin(command: Command) -> RequestSpan:
        operation = type(command).__name__.upper()
        attributes = {"db.system.name": "azure.iotoperations.statestore", "db.operation.name": operation, **where}
        return _Span(source.start_span(operation, kind=trace.SpanKind.CLIENT, attributes=attributes))

    return begin


class _Span:
    """See :class:`statestore_client.core.request.RequestSpan`."""

    __slots__ = ("_span", "properties")

    def __init__(self, span: Span) -> None:
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._span = span
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
        self.properties: tuple[tuple[str, str], ...] = tuple(carrier.items())

    def end(self, error: StateStoreError | None) -> None:
        from opentelemetry.trace import StatusCode

        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(StatusCode.ERROR)  # a text may have a key in it, or what the broker says
        self._span.end()
