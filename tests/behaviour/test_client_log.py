"""What the log says of a client's connection, with both shells, every driver, and the connection of an application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from support.ports import reserved_port
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    ConnectionLostError,
    ConnectionState,
    ConnectRefusedError,
    RequestTimeoutError,
    SessionLostError,
)
from statestore_client.core.actions import StateChanged
from statestore_client.reports import ConnectionLog
from statestore_client.server import EmbeddedServer

FAST = {"reconnect_delay": 0.01, "max_reconnect_delay": 0.02}
HINT = "is the port right?"


class Log:
    """The lines of clients so far, as level and text."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "statestore_client")
        self._caplog = caplog

    @property
    def lines(self) -> list[tuple[str, str]]:
        records = [record for record in list(self._caplog.records) if record.name == "statestore_client"]
        found = [(record.levelname, record.getMessage().partition(": ")) for record in records]
        # A lease of a test before, whose client was closed, may say only now that it is lost.
        return [(level, text) for level, (who, _, text) in found if who.startswith("state store client ")]

    @property
    def levels(self) -> list[str]:
        """Without DEBUG, which nobody sees who did not ask for it."""
        return [level for level, _ in self.lines if level != "DEBUG"]

    @property
    def loud(self) -> list[str]:
        return [text for level, text in self.lines if level == "WARNING"]

    def count(self, text: str) -> int:
        return sum(text in line for _, line in self.lines)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


@pytest.fixture
def port() -> int:
    """A port on which nobody listens."""
    return reserved_port()


@pytest.fixture
def paho(server: EmbeddedServer) -> Iterator[Client]:
    """A connected client of an application, which connects again by itself."""
    client = Client(CallbackAPIVersion.VERSION2, client_id="app", protocol=MQTTProtocolVersion.MQTTv5)
    client.reconnect_delay_set(1, 1)
    client.connect(server.host, server.port)
    client.loop_start()
    yield client
    client.disconnect()
    client.loop_stop()


async def test_an_outage_is_one_warning_and_its_end_one_info(shell: Shell, log: Log, port: int) -> None:
    """An outage is one WARNING and its end one INFO; attempts in between are quieter and do not repeat a reason or a
    hint."""
    with EmbeddedServer(port) as first:
        store = shell.client(first.url, client_id="pump-7", **FAST)
        await store.open()
    await until(lambda: log.count("still suspended after 5 attempts"))
    with EmbeddedServer(port=port):
        await until(lambda: store.state is ConnectionState.CONNECTED)
        await store.close()
        await until(lambda: log.lines[-1:] == [("DEBUG", "closed")])
    (warning,) = log.loud
    assert warning.startswith("suspended: ")
    assert "closed the connection" in warning
    assert log.count(HINT) <= 1
    assert log.lines[:2] == [("DEBUG", "connecting"), ("INFO", "connected")]
    level, text = log.lines[-2]
    assert level == "INFO"
    assert text.startswith("connected again after ")
    assert "lost the session" in text
    assert log.levels.count("INFO") <= 2 + log.count("still suspended: ")


async def test_a_client_that_never_connected_warns_once(shell: Shell, log: Log, port: int) -> None:
    """With ``retry_first_connect`` the first failed attempt is a WARNING, because open() raises nothing."""
    store = shell.client(f"mqtt://127.0.0.1:{port}", retry_first_connect=True, client_id="pump-7", **FAST)
    with pytest.raises(RequestTimeoutError):
        await store.open(timeout=0.01)
    await until(lambda: log.count("still not connected after 5 attempts"))
    assert log.levels == ["WARNING"]
    assert log.loud[0].startswith("not connected: cannot connect to mqtt://127.0.0.1:")
    assert log.count(HINT) == 1
    with EmbeddedServer(port=port):
        await store.open(timeout=20)
        await store.close()
    await until(lambda: len(log.levels) == 2)
    info = [text for level, text in log.lines if level == "INFO"]
    assert info[0].startswith("connected after ")
    assert info[0].endswith(" failed attempts")


async def test_an_outage_on_an_applications_connection(
    shell: Shell, log: Log, server: EmbeddedServer, paho: Client
) -> None:
    """An outage of an application's own connection is logged with the same lines."""
    async with shell.over(paho) as store:
        await until(lambda: log.levels == ["INFO"])
        await asyncio.to_thread(server.restart, keep_state=True)
        await until(lambda: len(log.levels) >= 3 and store.state is ConnectionState.CONNECTED)
        await store.set("k", b"1")
    assert log.loud[0].startswith("suspended: ")
    assert log.levels[:2] == ["INFO", "WARNING"]
    assert set(log.levels[2:]) == {"INFO"}  # an attempt that was refused while the server started has a line, too


async def test_the_end_of_a_client_is_an_error(shell: Shell, log: Log, server: EmbeddedServer) -> None:
    """The end of a client that was taken over is logged as an ERROR, because nobody may call it for hours."""
    async with shell.client(server.url, client_id="twin") as one, shell.client(server.url, client_id="twin"):
        await until(lambda: one.state is ConnectionState.CLOSED)
        await until(lambda: "ERROR" in log.levels)
    errors = [text for level, text in log.lines if level == "ERROR"]
    assert len(errors) == 1
    assert errors[0].startswith("closed for good: ")
    assert "another connection uses the same client id" in errors[0]
    assert not log.loud


async def test_what_open_raises_is_not_logged_as_well(shell: Shell, log: Log, port: int) -> None:
    """An error that open() raises is not logged as well."""
    with pytest.raises(ConnectionLostError):
        await shell.client(f"mqtt://127.0.0.1:{port}").open()
    await until(lambda: log.lines[-1:] == [("DEBUG", "closed")])
    assert log.levels == []


def test_every_reason_is_told_once_for_each_outage(log: Log) -> None:
    """Each reason is logged once for each outage, also when two reasons take turns, and again in the next outage."""
    told = ConnectionLog("c")
    lost, refused, unreachable = (ConnectionLostError(text) for text in ("lost", "refused; why?", "unreachable"))
    told.note(StateChanged(ConnectionState.CONNECTED), 0.0)
    for _ in range(2):
        for error in (lost, refused, unreachable, refused, unreachable, lost):
            told.note(StateChanged(ConnectionState.SUSPENDED, error), 0.0)
        told.note(StateChanged(ConnectionState.CONNECTED, SessionLostError("the session is lost")), 0.0)
    outage = [
        ("WARNING", "suspended: lost"),
        ("INFO", "still suspended: refused; why?"),
        ("INFO", "still suspended: unreachable"),
        ("DEBUG", "still suspended after 3 attempts"),
        ("DEBUG", "still suspended after 4 attempts"),
        ("DEBUG", "still suspended after 5 attempts"),
        ("INFO", "connected again after 5 failed attempts; the session is lost"),
    ]
    assert log.lines == [("INFO", "connected"), *outage, *outage]


def test_an_outage_is_told_each_minute(log: Log) -> None:
    """What will not pass by itself is a WARNING once, and an outage that lasts is one again each minute."""
    told = ConnectionLog("c")
    told.note(StateChanged(ConnectionState.CONNECTED), 0.0)
    told.note(StateChanged(ConnectionState.SUSPENDED, ConnectionLostError("restarting")), 100.0)
    refused = ConnectRefusedError("bad password", reason_code=0x86, fatal=True)
    for now in range(101, 300, 9):
        told.note(StateChanged(ConnectionState.SUSPENDED, refused), float(now))
    assert [line for line in log.lines if line[0] != "DEBUG"] == [
        ("INFO", "connected"),
        ("WARNING", "suspended: restarting"),
        ("WARNING", "still suspended: bad password"),
        ("WARNING", "still suspended after 8 attempts: bad password"),
        ("WARNING", "still suspended after 15 attempts: bad password"),
        ("WARNING", "still suspended after 22 attempts: bad password"),
    ]


def test_endless_reasons_are_not_remembered(log: Log) -> None:
    """A broker that gives a new reason for each attempt fills neither memory nor the log."""
    told = ConnectionLog("c")
    for number in range(1000):
        told.note(
            StateChanged(ConnectionState.CONNECTING, ConnectRefusedError(f"reason {number}", reason_code=0x88)), 0.0
        )
    assert log.levels == ["WARNING"] + ["INFO"] * 15
    assert len(told._reasons) == 16


def test_what_a_broker_says_stays_on_its_line(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """Reasons and client ids with line breaks, colours or separators stay on their line of the log."""
    told = ConnectionLog("c\nINFO all is well")
    evil = ConnectionLostError("busy\r\nWARNING \x1b[31mthe bank\u2028was robbed")
    told.note(StateChanged(ConnectionState.SUSPENDED, evil), 0.0)
    told.note(StateChanged(ConnectionState.CONNECTED, evil), 0.0)
    told.note(StateChanged(ConnectionState.CLOSED, evil), 0.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "ERROR"]
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert log.count("busy\\r\\nWARNING") == 3


async def test_a_slow_handler_of_the_log_holds_up_no_call(server: EmbeddedServer) -> None:
    """The blocking client logs without holding its lock, so that a handler may be slow or use the client."""
    from statestore_client import StateStoreClient

    store = StateStoreClient(server.url)
    states: list[ConnectionState] = []

    class Using(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "statestore_client":
                states.append(store.state)

    logger, handler = logging.getLogger("statestore_client"), Using()
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        await asyncio.to_thread(store.open)
        await until(lambda: states == [ConnectionState.CONNECTED])
        await asyncio.to_thread(store.close)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
