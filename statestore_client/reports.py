"""Log the state of a client's connection, warn of clients that were not closed, and trace requests."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from statestore_client.core.actions import ConnectionState, Remark, StateChanged
from statestore_client.errors import SettingsError, StateStoreError, TransportError
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.commands import Command

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from statestore_client.core.request import RequestSpan

logger: Final = logging.getLogger("statestore_client")

#: Reasons of one outage that are remembered; mostly there are two, the loss and the refusal after it.
_MOST_REASONS: Final = 16
#: An outage that lasts is a WARNING again after this time (seconds): the first one may have been overlooked.
_REMIND_AFTER_S: Final = 60.0


class ConnectionLog:
    """Of one client. Belongs to the thread, or the event loop, that tells of the changes.

    ========================================================  =======================================================
    the first connection stands                               INFO
    the connection is lost, or the first attempt failed       WARNING with the reason, once for each outage
    a later attempt failed for a reason not logged yet        INFO, or WARNING if it will not pass by itself
    a later attempt failed, a minute after the last WARNING   WARNING with the reason
    any other attempt failed                                  DEBUG without the reason
    the connection stands again                               INFO
    the client cannot go on after it was connected, or tried  ERROR with the reason
    the broker makes mistakes that harm nobody                WARNING, once for each connection
    any other change                                          DEBUG
    ========================================================  =======================================================

    A first attempt that ends the client is not logged: ``open()`` raises its error, if somebody waits for it. Each
    record has the new state in ``connection_state``, by which a handler can tell these lines from others.
    """

    def __init__(self, client_id: str) -> None:
        self._name = _on_one_line(client_id)
        self._was_connected = False
        self._failures = 0  # of this outage: the loss, and attempts
        self._reasons: set[str] = set()  # reasons, of this outage
        self._warned_at = 0.0  # the last WARNING of this outage
        #: Whether ``open()`` raises what ends the first attempt.
        self.is_awaited: bool = True

    def note(self, change: StateChanged | Remark, now: float) -> None:
        """Log a change, or what changed nothing. ``now`` is in monotonic seconds."""
        if isinstance(change, Remark):
            self._say(logging.WARNING, change.state, _on_one_line(change.text))
        elif change.state is ConnectionState.CONNECTED:
            self._connected(change)
        elif change.state is ConnectionState.CLOSED:
            self._closed(change)
        elif change.error is not None:
            self._failed(change.state, change.error, now)
        else:
            self._say(logging.DEBUG, change.state, str(change.state))

    def _failed(self, state: ConnectionState, error: StateStoreError, now: float) -> None:
        self._failures += 1
        reason = _on_one_line(str(error))
        is_new = reason not in self._reasons and len(self._reasons) < _MOST_REASONS
        if is_new:
            self._reasons.add(reason)
        needs_care = not isinstance(error, TransportError) or error.fatal
        level = logging.WARNING if needs_care else logging.INFO
        if self._failures == 1:
            level, text = logging.WARNING, f"{_trouble(state)}: {reason}"
        elif is_new:
            text = f"still {_trouble(state)}: {reason}"
        elif now - self._warned_at >= _REMIND_AFTER_S:
            level, text = logging.WARNING, f"still {_trouble(state)} after {self._tries} attempts: {reason}"
        else:
            level, text = logging.DEBUG, f"still {_trouble(state)} after {self._tries} attempts"
        if level == logging.WARNING:
            self._warned_at = now
        self._say(level, state, text)

    def _connected(self, change: StateChanged) -> None:
        text = "connected" if not self._failures else f"connected{' again' * self._was_connected}{self._after}"
        if change.error is not None:
            text += f"; {_on_one_line(str(change.error))}"
        self._say(logging.INFO, change.state, text)
        self._failures = 0
        self._reasons.clear()
        self._was_connected = True

    def _closed(self, change: StateChanged) -> None:
        if change.error is None or (self.is_awaited and not (self._was_connected or self._failures)):
            self._say(logging.DEBUG, change.state, "closed")
        else:
            self._say(logging.ERROR, change.state, f"closed for good: {_on_one_line(str(change.error))}")
        self._was_connected, self._failures = False, 0  # it may be opened again
        self._reasons.clear()

    @property
    def _tries(self) -> int:
        """Attempts that failed: the loss of a connection is none."""
        return self._failures - self._was_connected

    @property
    def _after(self) -> str:
        tries = self._tries
        return "" if not tries else f" after {tries} failed attempt{'s' * (tries > 1)}"

    def _say(self, level: int, state: ConnectionState, text: str) -> None:
        logger.log(level, "state store client %s: %s", self._name, text, extra={"connection_state": state})


def _trouble(state: ConnectionState) -> str:
    return "suspended" if state is ConnectionState.SUSPENDED else "not connected"


def _on_one_line(text: str) -> str:
    """Reasons come from the broker, too, and may hold line breaks."""
    return text if text.isprintable() else repr(text)[1:-1]


def warn_unclosed(thing: object, what: str) -> None:
    """Say, as Python does of files and sockets, that something was dropped and not closed. For finalizers.

    Under tracemalloc the warning has the place where it was made.
    """
    warnings.warn(f"unclosed {what}", ResourceWarning, stacklevel=2, source=thing)


# -- tracing -----------------------------------------------------------------------------------------------------------
#
# Spans of OpenTelemetry for requests, if the application has it and the setting ``tracing`` is on.
#
# A span has the name of the command, where the broker is, and how the request failed. It never has a key or a value.
# Its parent is what is current where the request is made. The W3C trace context goes with the request as the user
# properties ``traceparent`` and ``tracestate`` (W3C Trace Context: MQTT, 3): the official SDKs send none, so it is off
# by default.


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
