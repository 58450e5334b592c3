"""The disk fills up, or fails, while a server runs: what it could not write it never acknowledges, and it says why."""

from __future__ import annotations

import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def _start(data: Path, *before: str, is_limited: bool = False) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*before, sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_small_files if is_limited else None,
    )


def _serve(data: Path, *before: str, is_limited: bool = False) -> tuple[subprocess.Popen[bytes], int]:
    process = _start(data, *before, is_limited=is_limited)
    assert process.stdout is not None
    found = re.search(rb":(\d+)$", process.stdout.readline().strip())
    assert found is not None
    return process, int(found[1])


class _FileSystem:
    """A small one in memory, that only processes see which are started with ``inside``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir()
        mount = f"mount -t tmpfs -o size=3m tmpfs '{path}' && echo ready && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            self.close()
            pytest.skip("this machine lets nobody mount a file system of their own")
        target = f"--target={self._holder.pid}"
        self.inside = ("nsenter", target, "--user", "--mount", "--preserve-credentials")

    def remount(self, options: str) -> None:
        subprocess.run([*self.inside, "mount", "-o", f"remount,{options}", str(self._path)], check=True)

    def close(self) -> None:
        self._holder.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[_FileSystem]:
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("util-linux is not there")
    found = _FileSystem(tmp_path / "disk")
    yield found
    found.close()


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


def _fill(process: subprocess.Popen[bytes], port: int) -> tuple[int, bytes]:
    """Publish until the server gives up: how many messages it acknowledged, and its last words."""
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
    assert b"Traceback" not in log
    assert 10 < acknowledged < 900
    return acknowledged, log


def _expect(process: subprocess.Popen[bytes], port: int, acknowledged: int) -> None:
    """All of them are there, in order, and the server ends as it should."""
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


def test_files_that_cannot_grow(tmp_path: Path) -> None:
    """When files cannot grow, the server tells its clients and exits with code 6 and a reason; with room again, all is
    there."""
    data = tmp_path / "data"
    acknowledged, log = _fill(*_serve(data, is_limited=True))
    assert b"full" in log or b"disk I/O error" in log
    _expect(*_serve(data), acknowledged)


@pytest.mark.machine
def test_a_disk_that_fills_up(disk: _FileSystem, tmp_path: Path) -> None:
    """When the file system is full, the server also exits with code 6, and says so and what to do."""
    data = tmp_path / "disk" / "data"
    acknowledged, log = _fill(*_serve(data, *disk.inside))
    assert b"is full. Make room, and start again" in log
    assert b"have as much free as the directory takes" in log
    disk.remount("size=64m")
    _expect(*_serve(data, *disk.inside), acknowledged)


@pytest.mark.machine
def test_a_disk_that_is_full_at_the_start(disk: _FileSystem, tmp_path: Path) -> None:
    """A start on a full disk is refused with the same words, and leaves nothing behind that would be in the way."""
    subprocess.run([*disk.inside, "dd", "if=/dev/zero", f"of={tmp_path}/disk/big"], capture_output=True, check=False)
    process = _start(tmp_path / "disk" / "data", *disk.inside)
    _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 6
    assert b"full" in log or b"No space left" in log
    assert b"Traceback" not in log
    disk.remount("size=64m")
    process, _ = _serve(tmp_path / "disk" / "data", *disk.inside)
    process.terminate()
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


@pytest.mark.machine
def test_a_read_only_disk(disk: _FileSystem, tmp_path: Path) -> None:
    """A start on a read-only disk is refused with the reason; once it can be written, all that was acknowledged is
    there."""
    data = tmp_path / "disk" / "data"
    acknowledged, _ = _fill(*_serve(data, *disk.inside))
    disk.remount("size=64m,ro")
    process = _start(data, *disk.inside)
    _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 6
    assert b"cannot be written. Check its permissions, and the disk's" in log
    assert b"Traceback" not in log
    disk.remount("size=64m,rw")
    _expect(*_serve(data, *disk.inside), acknowledged)
