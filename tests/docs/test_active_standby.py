"""The service of ``how-to/active-standby.md`` in situations that its page does not show: broker and client end."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.ports import reserved_port
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer
from statestore_client.server.runtime.security.passwords import remove_user, set_password

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "active-standby.md"


@pytest.fixture(params=["service", "service_aio"], ids=["blocking", "asyncio"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The program of the page, for threads or for an event loop."""
    block = re.search(rf"```python\n(# {request.param}\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert block is not None
    file = tmp_path / f"{request.param}.py"
    file.write_text(block[1], encoding="utf-8")
    return file


@contextmanager
def running(program: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    with program.with_name("log").open("wb") as output:
        command = [sys.executable, program, url, "two"]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=program.parent)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.mark.parametrize("is_active", [True, False])
def test_a_copy_whose_client_has_ended_ends(program: Path, is_active: bool) -> None:
    """A copy whose client id another client takes over says so and ends, with a handful of lines; it does not spin."""
    log = program.with_name("log")
    with EmbeddedServer() as server, StateStoreClient(server.url) as store:
        if not is_active:
            store.set("line1/leader", "another copy")
        with running(program, f"{server.url}?client_id=twin") as process:
            eventually(lambda: any(b"NEX" in m.payload for m in server.messages), "it has campaigned")
            if is_active:
                eventually(lambda: b"two is active" in log.read_bytes(), "it leads")
            with StateStoreClient(server.url, client_id="twin"):
                assert process.wait(20) == 1
    text = log.read_text()
    assert "ClosedError: the client has ended" in text
    assert "another connection uses the same client id" in text
    assert text.count("is no longer active") + text.count("has no connection") <= 2


def test_a_copy_that_is_not_let_in_for_a_while_does_not_spin(program: Path) -> None:
    """A copy whose password is refused for some seconds logs a line a second at most, and is active again then."""
    log, users = program.with_name("log"), program.with_name("users")
    set_password(users, "pump", b"right")
    with EmbeddedServer(passwords=users) as server:
        url = server.url.replace("mqtt://", "mqtt://pump:right@") + "?reconnect_delay=0.05&max_reconnect_delay=0.2"
        with running(program, url) as process:
            eventually(lambda: b"two is active" in log.read_bytes(), "it leads")
            remove_user(users, "pump")
            eventually(lambda: b"two has no connection" in log.read_bytes(), "it logs the outage")
            began = time.monotonic()
            eventually(lambda: log.read_bytes().count(b"two has no connection") >= 3, "it goes on")
            assert time.monotonic() - began > 1.0
            set_password(users, "pump", b"right")
            eventually(lambda: log.read_bytes().count(b"two is active") == 2, "it leads again")
            process.terminate()
            assert process.wait(20) == 0


def test_a_copy_without_a_broker_can_be_stopped(program: Path) -> None:
    """A copy that waits for its broker ends on SIGTERM, also before it was ever connected."""
    log = program.with_name("log")
    with running(program, f"mqtt://127.0.0.1:{reserved_port()}") as process:
        eventually(lambda: b"two has no connection" in log.read_bytes(), "it has tried")
        process.terminate()
        assert process.wait(20) == 0


def test_a_standby_copy_that_loses_its_broker_logs_it(program: Path) -> None:
    """A standby copy that loses its broker logs that, does not become active, and is a candidate again once the broker
    is back."""
    log = program.with_name("log")
    port = reserved_port()
    with ExitStack() as stack:
        with EmbeddedServer(port) as server:
            with StateStoreClient(server.url) as store:
                store.set("line1/leader", "another copy")
            process = stack.enter_context(running(program, server.url))
            eventually(lambda: any(b"NEX" in m.payload for m in server.messages), "it has campaigned")
            assert b"has no connection" not in log.read_bytes()
        eventually(lambda: b"two has no connection: the election" in log.read_bytes(), "it logs the outage")
        with EmbeddedServer(port=port):
            eventually(lambda: b"two is active" in log.read_bytes(), "it leads")
            process.terminate()
            assert process.wait(30) == 0
    assert b"who leads is not known" in log.read_bytes()
