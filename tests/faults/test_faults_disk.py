"""The disk fills up, or fails, while a server runs: what it could not write it never acknowledges, and it says why."""

from __future__ import annotations

import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    Packet,
    PacketDecoder,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    encode,
)

TIMEOUT_S = 20.0
_LIMIT = 3_000_000


def _small_files() -> None:
    """Files cannot grow beyond the limit: the same error as on a full disk, for one process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LIMIT, _LIMIT))


def _serve(data: Path, *, is_limited: bool) -> tuple[subprocess.Popen[bytes], int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_small_files if is_limited else None,
    )
    assert process.stdout is not None
    found = re.search(rb":(\d+)$", process.stdout.readline().strip())
    assert found is not None
    return process, int(found[1])


class _Client:
    def __init__(self, port: int, name: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._decoder = PacketDecoder(version=5, max_packet_size=1 << 20)
        self._packets: list[Packet] = []
        self.send(Connect(name, clean_start=False, properties=ConnectProperties(session_expiry=1000)))
        assert isinstance(self.receive(), Connack)

    def send(self, packet: Packet) -> None:
        self.sock.sendall(encode(packet, 5))

    def receive(self) -> Packet | None:
        """The next packet; None at the end."""
        while not self._packets:
            try:
                data = self.sock.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """The server tells its clients that it stops, exits with code 6 and a reason; with room again, all is there."""
    data = tmp_path / "data"
    process, port = _serve(data, is_limited=True)
    receiver = _Client(port, "receiver")
    receiver.send(Subscribe(1, (Subscription("t", 1),)))
    assert isinstance(receiver.receive(), Suback)
    receiver.sock.close()
    sender = _Client(port, "sender")
    acknowledged = 0
    for number in range(1, 1000):
        sender.send(Publish("t", number.to_bytes(4, "big") + bytes(50_000), 1, packet_id=number))
        answer = sender.receive()
        if not isinstance(answer, Puback):
            assert isinstance(answer, Disconnect)
            break
        acknowledged += 1
    sender.sock.close()
    _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 6
    assert b"full" in log or b"disk I/O error" in log
    assert b"Traceback" not in log
    assert 10 < acknowledged < 900
    process, port = _serve(data, is_limited=False)
    receiver = _Client(port, "receiver")
    for number in range(1, acknowledged + 1):
        message = receiver.receive()
        assert isinstance(message, Publish)
        assert int.from_bytes(message.payload[:4], "big") == number
        receiver.send(Puback(message.packet_id))
    receiver.sock.close()
    process.terminate()
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
