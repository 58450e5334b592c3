"""A message without its last frame, which libzmq keeps without a bound: a limit on memory contains it."""

from __future__ import annotations

import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from support.ports import reserved_port
from support.raft_peers import SERVE

from raft_client import RaftClient

#: The process takes 200 MiB of addresses at rest.
_LIMIT_KIB = 400 * 1024
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
_READY = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
_MANY_FRAMES = b"\x01\x00" * 500_000  # each empty, and followed by more


def _send_frames_without_end(port: int, most: int) -> None:
    """ZMTP 3.0 by hand, until the connection ends, or that many MB."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection, suppress(ConnectionError):
        connection.sendall(_GREETING)
        greeting = b""
        while len(greeting) < len(_GREETING) and (more := connection.recv(len(_GREETING) - len(greeting))):
            greeting += more
        connection.sendall(bytes([4, len(_READY)]) + _READY)
        for _ in range(most):
            connection.sendall(_MANY_FRAMES)


def test_a_limit_on_memory_ends_a_peer_and_loses_nothing(tmp_path: Path) -> None:
    """libzmq ends the process at the limit; started again, the peer has all that it acknowledged."""
    port = reserved_port()
    url = f"tcp://127.0.0.1:{port}"
    command = [*SERVE, "--id=1", f"--peer=1={url}", "--data", str(tmp_path / "1")]
    limited = ["sh", "-c", f'ulimit -c 0; ulimit -v {_LIMIT_KIB}; exec "$@"', "sh", *command]
    with subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as peer:
        try:
            assert peer.stdout is not None
            assert peer.stdout.readline().startswith(b"listening")
            with RaftClient(url) as log:
                index = log.append(b"kept")
            _send_frames_without_end(port, 100)
            assert peer.wait(60) == -signal.SIGABRT
        finally:
            peer.kill()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as peer:
        try:
            assert peer.stdout is not None
            assert peer.stdout.readline().startswith(b"listening")
            with RaftClient(url) as log:
                assert {entry.index: entry.data for entry in log.entries(timeout=30)}[index] == b"kept"
        finally:
            peer.kill()
