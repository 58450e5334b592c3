"""``statestore serve`` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from statestore_client import StateStoreClient

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


COMMAND = [sys.executable, "-m", "statestore_client.cli"]


@pytest.fixture
def served() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """``statestore serve`` on a free port, and its process."""
    process = subprocess.Popen([*COMMAND, "serve", "--port", "0", "--max-keys", "2"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line.startswith("listening on mqtt://127.0.0.1:")
    yield line.removeprefix("listening on ").strip(), process
    if process.poll() is None:
        process.kill()
    process.wait(10)
    process.stdout.close()


def test_serve_serves_until_told_to_stop(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    """``serve`` prints its address, keeps its quota, and exits with 0 on SIGTERM."""
    url, process = served
    with StateStoreClient(url) as store:
        store.set("a", "1")
        store.set("b", "2")
        with pytest.raises(Exception, match="the quota has been exceeded"):
            store.set("c", "3")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_serve_refuses_a_port_in_use(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    """A port that another server has is a usage error that names it."""
    port = served[0].rsplit(":", 1)[1]
    done = subprocess.run([*COMMAND, "serve", "--port", port], capture_output=True, timeout=30)
    assert done.returncode == 2
    complaint = done.stderr.decode()
    assert complaint.count(f"{port}") == 1
    assert "address already in use; choose another port, or 0 for a free one" in complaint
