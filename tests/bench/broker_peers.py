"""The brokers of ``bench_broker.py``, each in a process of its own: ours, Debian's mosquitto, amqtt.

amqtt is looked for where ``STATESTORE_BENCH_AMQTT`` says (the path of its ``amqtt`` command); otherwise pip installs it
into a virtual environment that lasts as long as the benchmark.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import attrs
from own_venv import install

__all__ = ["Peer", "Start", "peers"]

#: How long a broker may take until it listens, in seconds.
_PATIENCE_S: Final = 15.0

_AMQTT: Final = "amqtt==0.12.*"

#: Queues without a limit: a broker that throws messages away is not quicker. Nagle's algorithm off, as ours.
_MOSQUITTO_SETTINGS: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
max_queued_messages 0
set_tcp_nodelay true
log_type none
"""

_AMQTT_SETTINGS: Final = """\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


@attrs.frozen
class Peer:
    """A running broker."""

    port: int
    pid: int

    @property
    def resident_kb(self) -> float:
        """Memory that the process has in use, in kilobytes of 1000 bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1.024
        raise ValueError(f"no VmRSS of process {self.pid}")


Start: TypeAlias = Callable[[], AbstractContextManager[Peer]]


@contextmanager
def peers(stack: ExitStack) -> Iterator[dict[str, Start]]:
    """The brokers that are there, by name; prints why another one is not. ``stack`` ends after the last of them."""
    found: dict[str, Start] = {"serve": _serve}
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    mosquitto = shutil.which("mosquitto", path=path)
    if mosquitto is None:
        print("skipped: mosquitto is not installed")
    else:
        found["mosquitto"] = partial(_configured, [mosquitto, "-c"], _MOSQUITTO_SETTINGS)
    amqtt = os.environ.get("STATESTORE_BENCH_AMQTT") or _install_amqtt(stack)
    if amqtt is not None:
        found["amqtt"] = partial(_configured, [amqtt, "-c"], _AMQTT_SETTINGS)
    yield found


def _install_amqtt(stack: ExitStack) -> str | None:
    commands = install(stack, _AMQTT)
    return None if commands is None else str(commands / "amqtt")


@contextmanager
def _serve() -> Iterator[Peer]:
    command = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0"]
    with _process(command, stdout=subprocess.PIPE) as process:
        line = process.stdout.readline().decode() if process.stdout else ""
        yield Peer(int(line.rsplit(":", 1)[1]), process.pid)


@contextmanager
def _configured(command: list[str], settings: str) -> Iterator[Peer]:
    """A broker that reads its port from a file."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="bench-broker-") as folder:
        file = Path(folder, "broker.conf")
        file.write_text(settings.format(port=port))
        file.chmod(0o644)
        Path(folder).chmod(0o755)  # mosquitto may change its user before it reads
        with _process([*command, str(file)]) as process:
            _wait_for(port, process)
            yield Peer(port, process.pid)


@contextmanager
def _process(command: list[str], *, stdout: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the broker does not listen on port {port}")
