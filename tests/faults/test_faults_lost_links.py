"""The line between sites is cut, and whole again; machines of clients are lost. No kernel closes a connection."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.namespaces import Machines
from support.waiting import eventually

pytestmark = [pytest.mark.machine, pytest.mark.timeout(120)]

_PORT = 7000
_INITIALIZED = "2"
#: TCP repeats what is not acknowledged after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s, and the first of it leaves within the
#: first second: with nothing but that, a line that is cut for so long carries something 5 s after it is whole again.
_CUT_S = 7.5
#: 1.5 s where nothing else runs: attempts to connect are 1.2 s apart.
_BACK_S = 2.5


class _Program:
    """It runs on one machine, and each line that it prints is kept."""

    def __init__(self, command: list[str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line)

    def says(self, what: str) -> bool:
        return any(what in line for line in self.lines)

    def next(self, what: str, after: float) -> float:
        """How long after this moment it is said the next time."""
        found: list[float] = []

        def is_said() -> bool:
            found[:] = [
                float(line.split()[0]) for line in self.lines if what in line and float(line.split()[0]) > after
            ]
            return bool(found)

        eventually(is_said, what, every_s=0.05)
        return found[0] - after

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@contextlib.contextmanager
def _programs(machines: Machines) -> Iterator[Callable[..., _Program]]:
    """Starts programs on machines: ``start(machine, *command)``."""
    with contextlib.ExitStack() as stack:

        def start(machine: str, *command: str) -> _Program:
            program = _Program(machines.on(machine, sys.executable, *command))
            stack.callback(program.end)
            return program

        yield start


def _serve(site: str, *peers: str) -> list[str]:
    dialled = [f"--peer=tcp://{peer}:{_PORT}" for peer in peers]
    return [
        "-m", "statestore_client.cli", "serve", "--insecure", "--port", "0", "--site", site,
        "--site-listen", f"tcp://0.0.0.0:{_PORT}", *dialled,
    ]  # fmt: skip


def _watch(address: str, does: str, clients: int = 0) -> list[str]:
    return [str(Path(__file__).with_name("site_watcher.py")), f"tcp://{address}:{_PORT}", does, str(clients)]


def _connections(site: _Program, address: str) -> int:
    """With another machine, as the kernel of the site's own one knows them."""
    number = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    table = Path(f"/proc/{site.process.pid}/net/tcp").read_text()
    return sum(f" {number}:" in line and line.split()[3] == "01" for line in table.splitlines())


def test_a_line_between_sites_that_is_whole_again_is_used_again(figures: Callable[[str], None]) -> None:
    """First a site starts while its line is cut, then the line is cut under it, and its client. Each time the two sites
    are synced as soon as the line is whole, and the client has its answers, and the events."""
    with Machines("bonn", "rome", "client") as machines, _programs(machines) as start:
        addresses = machines.addresses
        synced = f"'rome': {_INITIALIZED}"
        bonn = start("bonn", *_serve("bonn"))
        eventually(lambda: bonn.says("listening for sites"))
        at_bonn = start("bonn", *_watch("127.0.0.1", "set"))
        eventually(lambda: at_bonn.says("answer"))
        machines.cut("rome")
        rome = start("rome", *_serve("rome", addresses["bonn"]))
        eventually(lambda: rome.says("listening for sites"))
        mended = _mended(machines, "rome")
        gaps = {"a site that has started meanwhile": at_bonn.next(synced, mended)}
        at_rome = start("client", *_watch(addresses["rome"], "get"))
        eventually(lambda: at_rome.says("answer") and at_rome.says("key tick"))
        machines.cut("rome")
        mended = _mended(machines, "rome")
        gaps["the site"] = at_bonn.next(synced, mended)
        gaps["an answer"] = at_rome.next("answer", mended)
        gaps["an event"] = at_rome.next("key tick", mended)
    figures("after the line is whole: " + ", ".join(f"{what} {gap:.2f} s" for what, gap in gaps.items()))
    assert max(gaps.values()) < _BACK_S


def _mended(machines: Machines, name: str) -> float:
    """When the line of this one, which is cut, is whole again."""
    time.sleep(_CUT_S)  # the fault itself
    machines.mend(name)
    return time.monotonic()


def test_a_line_that_has_carried_one_way_only_is_used_again(figures: Callable[[str], None]) -> None:
    """Nothing of one site reached the other one, which was heard."""
    with Machines("bonn", "rome") as machines, _programs(machines) as start:
        bonn = start("bonn", *_serve("bonn"))
        eventually(lambda: bonn.says("listening for sites"))
        start("rome", *_serve("rome", machines.addresses["bonn"]))
        at_bonn = start("bonn", *_watch("127.0.0.1", "set"))
        synced = f"'rome': {_INITIALIZED}"
        eventually(lambda: at_bonn.says(synced))
        machines.lose("bonn", "rome")
        time.sleep(_CUT_S)  # the fault itself
        machines.find("bonn", "rome")
        gap = at_bonn.next(synced, time.monotonic())
    figures(f"after the line is whole: {gap:.2f} s")
    assert gap < _BACK_S


def test_a_site_lets_go_of_clients_whose_machine_is_lost(figures: Callable[[str], None]) -> None:
    """It keeps no connection of theirs, whether they were idle or waited for an answer."""
    with Machines("bonn", "client") as machines, _programs(machines) as start:
        bonn = start("bonn", *_serve("bonn"))
        eventually(lambda: bonn.says("listening for sites"))
        client = start("client", *_watch(machines.addresses["bonn"], "get", 20))
        eventually(lambda: client.says("answer"))
        address = machines.addresses["client"]
        assert _connections(bonn, address) == 23
        machines.cut("client")
        cut = time.monotonic()
        eventually(lambda: not _connections(bonn, address), "nothing is kept", every_s=0.05)
        took_s = time.monotonic() - cut
    figures(f"23 connections let go after {took_s:.1f} s")
    assert took_s < 6


_CLIENTS_OF_A_BROKER = """
import sys, time
import paho.mqtt.client as paho
client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
client.on_connect = lambda *_: print("ready")
client.connect(sys.argv[1], int(sys.argv[2]), keepalive=0)
client.loop_forever()
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_broker_lets_go_of_a_lost_client_without_a_keep_alive(figures: Callable[[str], None]) -> None:
    """The kernel notices for it, though nothing is ever sent on the connection."""
    with Machines("bonn", "client") as machines, _programs(machines) as start:
        serve = ("-m", "statestore_client.cli", "serve", "--insecure", "--host", "0.0.0.0", "--port", str(_PORT))
        bonn = start("bonn", *serve)
        eventually(lambda: bonn.says("listening"))
        client = start("client", "-c", _CLIENTS_OF_A_BROKER, machines.addresses["bonn"], str(_PORT))
        eventually(lambda: client.says("ready"))
        address = machines.addresses["client"]
        assert _connections(bonn, address) == 1
        machines.cut("client")
        cut = time.monotonic()
        eventually(lambda: not _connections(bonn, address), "nothing is kept", every_s=0.5, timeout_s=200)
        took_s = time.monotonic() - cut
    figures(f"let go after {took_s:.0f} s")


_CLIENTS_OF_A_PEER = """
import sys, threading, time
from raft_client import RaftClient
clients = [RaftClient(sys.argv[1]).open() for _ in range(5)]
readers = [client.subscribe() for client in clients[:2]]
for reader in readers:
    threading.Thread(target=list, args=(reader,), daemon=True).start()
for client in clients:
    client.append(b"x")
print("ready")
time.sleep(600)
"""


def test_a_peer_lets_go_of_clients_whose_machine_is_lost(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """Of the log: those that have asked something, and those that it broadcasts to."""
    with Machines("bonn", "client") as machines, _programs(machines) as start:
        url = f"tcp://{machines.addresses['bonn']}:{_PORT}"
        options = ("--id", "a", "--peer", f"a={url}", "--insecure", "--data", str(tmp_path))
        peer = start("bonn", "-m", "raft_client.cli", "serve", *options)
        eventually(lambda: peer.lines)
        client = start("client", "-c", _CLIENTS_OF_A_PEER, url)
        eventually(lambda: client.says("ready"))
        address = machines.addresses["client"]
        eventually(lambda: _connections(peer, address) >= 7, "those for broadcasts, too, which nobody has waited for")
        connections = _connections(peer, address)
        machines.cut("client")
        cut = time.monotonic()
        eventually(lambda: not _connections(peer, address), "nothing is kept", every_s=0.1)
        took_s = time.monotonic() - cut
    figures(f"{connections} connections let go after {took_s:.1f} s")
    assert took_s < 20
