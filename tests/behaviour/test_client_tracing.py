"""Spans of OpenTelemetry for requests, as a collector and the broker see them, with both shells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest
from support.shells import Shell

from statestore_client import AsyncStateStoreClient, NotAuthorizedError, RequestTimeoutError, StateStoreClient
from statestore_client.server import EmbeddedServer, PublishedMessage
from statestore_client.wire.protocol import COMMAND_TOPIC

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_WHY = "opentelemetry-sdk comes with the extra test"
trace = pytest.importorskip("opentelemetry.trace", reason=_WHY)
sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=_WHY)
export = pytest.importorskip("opentelemetry.sdk.trace.export", reason=_WHY)
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=_WHY)


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """What the application's SDK exports; a process sets it once."""
    made: InMemorySpanExporter = in_memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


@pytest.fixture
def exported(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    """The same, empty."""
    exporter.clear()
    yield exporter
    exporter.clear()


def user_properties(message: PublishedMessage) -> dict[str, str]:
    return dict(message.properties.user_properties)


def requests(server: EmbeddedServer) -> list[PublishedMessage]:
    return [message for message in server.messages if message.topic == COMMAND_TOPIC]


def of_requests(exported: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.kind is trace.SpanKind.CLIENT]


async def test_each_request_has_a_span_and_sends_its_context(
    shell: Shell, server: EmbeddedServer, exported: InMemorySpanExporter
) -> None:
    """A request has a span with the command and the broker's address, without key and value, and the PUBLISH names
    that very span."""
    async with shell.client(server.url, tracing=True) as store:
        await store.set("secret-key", b"secret-value")
        await store.get("secret-key")
    put, got = of_requests(exported)
    assert [put.name, got.name] == ["SET", "GET"]
    assert put.attributes is not None
    assert (put.attributes["server.address"], put.attributes["server.port"]) == (server.host, server.port)
    assert "secret" not in put.to_json()
    sent = [user_properties(message)["traceparent"].rpartition("-")[0] for message in requests(server)]
    assert sent == [f"00-{s.context.trace_id:032x}-{s.context.span_id:016x}" for s in (put, got)]


@pytest.mark.parametrize("driver", ["native", "paho"])
async def test_the_parent_is_what_is_current_where_the_request_is_made(
    driver: Literal["native", "paho"], server: EmbeddedServer, exported: InMemorySpanExporter
) -> None:
    """Spans of requests, also of a batch larger than the window, are children of the application's span."""
    async with AsyncStateStoreClient(server.url, driver=driver, tracing=True, max_in_flight=4) as store:
        with trace.get_tracer("application").start_as_current_span("work") as work:
            await store.set_many((f"k{n}", b"v") for n in range(20))
    parents = {span.parent.span_id for span in of_requests(exported) if span.parent is not None}
    assert (len(of_requests(exported)), parents) == (20, {work.get_span_context().span_id})


def test_the_parent_of_a_blocking_request_is_that_of_its_thread(
    server: EmbeddedServer, exported: InMemorySpanExporter
) -> None:
    """A call of the blocking client is a child of what is current in its thread."""
    application = trace.get_tracer("application")
    with StateStoreClient(server.url, tracing=True) as store, application.start_as_current_span("work") as work:
        store.set_many((f"k{n}", b"v") for n in range(200))
    parents = {span.parent.span_id for span in of_requests(exported) if span.parent is not None}
    assert (len(of_requests(exported)), parents) == (200, {work.get_span_context().span_id})


async def test_a_span_says_how_its_request_failed(shell: Shell, exported: InMemorySpanExporter) -> None:
    """Refused requests, and those without an answer, end their spans with the class of the error."""
    with EmbeddedServer(authorize=lambda _client, command: type(command).__name__ != "Set") as server:
        async with shell.client(server.url, tracing=True) as store:
            with pytest.raises(NotAuthorizedError):
                await store.set("k", b"v")
            server.stop()
            with pytest.raises(RequestTimeoutError):
                await store.get("k", timeout=0.05)
    outcomes = [(s.attributes["error.type"], s.status.status_code) for s in of_requests(exported) if s.attributes]
    error = trace.StatusCode.ERROR
    assert outcomes == [("NotAuthorizedError", error), ("RequestTimeoutError", error)]


async def test_without_the_setting_nothing_is_sent_or_recorded(
    shell: Shell, server: EmbeddedServer, exported: InMemorySpanExporter
) -> None:
    """By default there is no span, and the request has the user properties of the official SDKs only."""
    async with shell.client(server.url) as store:
        await store.set("k", b"v")
    (request,) = requests(server)
    assert set(user_properties(request)) == {"__srcId", "__protVer", "$partition", "$high_priority", "__ts"}
    assert of_requests(exported) == []


CODE = """
import sys
from statestore_client import SettingsError, StateStoreClient
sys.modules["opentelemetry"] = None
StateStoreClient("mqtt://127.0.0.1")
try:
    StateStoreClient("mqtt://127.0.0.1", tracing=True)
except SettingsError as error:
    print(error)
"""


def test_tracing_without_opentelemetry_says_what_to_install() -> None:
    """Where ``opentelemetry-api`` is not installed, the setting is refused, and everything else works."""
    done: Any = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "tracing needs opentelemetry-api: pip install 'statestore-client[tracing]'\n"
