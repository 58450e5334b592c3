"""The web service of ``how-to/web-service.md``: before its broker, beside it, and at its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.ports import reserved_port
from support.waiting import eventually

import statestore_client
from statestore_client.server import EmbeddedServer

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "web-service.md"


@contextmanager
def served(folder: Path, broker: str) -> Iterator[str]:
    """The program of the page under uvicorn, and its URL. It ends with 0 when it gets SIGTERM."""
    block = re.search(r"```python\n(# web\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert block is not None
    (folder / "web.py").write_text(block[1], encoding="utf-8")
    port = reserved_port()
    package = str(Path(statestore_client.__file__).parents[1])
    environment = os.environ | {"STATESTORE_URL": broker, "PYTHONPATH": os.pathsep.join([str(folder), package])}
    command = [sys.executable, "-m", "uvicorn", "web:app", f"--port={port}", "--lifespan=on"]
    with subprocess.Popen(command, cwd=folder, env=environment) as process:
        try:
            yield f"http://127.0.0.1:{port}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM)
        finally:
            process.kill()


def ask(url: str, data: bytes | None = None) -> tuple[int, str]:
    """Return status and body; status 0 while the service does not listen."""
    request = urllib.request.Request(url, data, method="GET" if data is None else "PUT")  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.timeout(240)  # FastAPI takes a second to import, and many on a busy machine
def test_it_serves_before_its_broker_is_there_and_after(tmp_path: Path) -> None:
    """It lives and says why it is not ready while the broker is away, serves as soon as it is there, and ends."""
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    broker = reserved_port()
    with served(tmp_path, f"mqtt://127.0.0.1:{broker}?max_reconnect_delay=0.2") as url:
        eventually(lambda: ask(url + "/live") == (200, '"alive"'), "it listens", timeout_s=120)
        status, why = ask(url + "/ready")
        assert (status, "connect" in why) == (503, True)
        with EmbeddedServer(port=broker):
            eventually(lambda: ask(url + "/ready") == (200, '"ready"'), "it is connected")
            assert ask(url + "/setpoint/line1")[0] == 404
            assert ask(url + "/setpoint/line1", b"21.5")[0] == 200
            assert '"value":"21.5"' in ask(url + "/setpoint/line1")[1]
            assert "statestore_client_connected 1\nstatestore_client_requests 3\n" in ask(url + "/metrics")[1]
        status, body = ask(url + "/setpoint/line1", b"22")
        assert (status, "may_have_been_applied" in body) == (503, True)
