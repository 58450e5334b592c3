"""Peers that have not said who they are: whatever they do, they shut nobody out. At every endpoint."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.keys import Certificates
from support.server_clients import CONNECT_AND_PING, TIMEOUT_S, Wire
from support.waiting import eventually
from support.websocket_wire import BINARY, RawWebSocket, frame, handshake

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    ReasonCode,
    Will,
    encode,
)
from statestore_client.server import BrokerLimits, EmbeddedServer, ServerTls
from statestore_client.server.runtime.transport.peers import Group, Peer, Peers

CROWD, BYSTANDER = "127.0.0.1", "127.0.0.2"
DOORS = ["mqtt", "mqtts", "ws", "wss", "unix"]

#: PUBLISH with a remaining length of 150,000, to topic "t"
UNFINISHED = bytes.fromhex("30f0930900017400")

#: CONNECT of MQTT 5.0 with a remaining length of 120,000
UNFINISHED_CONNECT = bytes.fromhex("10c0a90700044d515454050200")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("unauthenticated"))


@contextmanager
def serving(certificates: Certificates, **limits: Any) -> Iterator[EmbeddedServer]:
    """All endpoints open. Nobody is dropped for being slow, unless the test says when."""
    limits = {"connect_timeout_s": 600, **limits}
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    with (
        tempfile.TemporaryDirectory(prefix="endpoints") as folder,
        EmbeddedServer(
            tls=tls,
            tls_port=0,
            ws_port=0,
            wss_port=0,
            unix_socket=Path(folder, "mqtt"),
            broker_limits=BrokerLimits(**limits),
        ) as server,
    ):
        yield server


def silent(server: EmbeddedServer, endpoint: str, source: str = CROWD) -> socket.socket:
    """A socket at this endpoint that says nothing."""
    if endpoint == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(TIMEOUT_S)
        sock.connect(server.urls["unix"].removeprefix("unix:"))
        return sock
    port = int(server.urls[endpoint].split(":")[2].partition("/")[0])
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S, (source, 0))


def peers_of(server: EmbeddedServer) -> Peers:
    driver = server._running()._driver
    assert driver is not None
    return driver.peers


def holds_more_than(server: EmbeddedServer, size: int) -> None:
    eventually(lambda: peers_of(server).unauthenticated.held_bytes > size, f"more than {size} bytes have come")


def comes_in(server: EmbeddedServer, client_id: str, source: str) -> bool:
    with Wire(server, source=source) as wire:
        connack = wire.connect(client_id)
        return isinstance(connack, Connack) and connack.reason_code == 0


def is_open(sock: socket.socket) -> bool:
    """Whether the server has not closed it."""
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


# -- how many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", DOORS)
@pytest.mark.attack("MQTT", "crowds of connections, silent ones too")
def test_silent_sockets_shut_nobody_out(certificates: Certificates, endpoint: str) -> None:
    """Of sixty silent sockets of one address twenty stay and the oldest go, and clients come in from there and
    elsewhere."""
    with serving(certificates, connections=20, unauthenticated_connections=20) as server, ExitStack() as stack:
        bystander = stack.enter_context(closing(silent(server, "mqtt", BYSTANDER)))
        eventually(lambda: len(peers_of(server)) == 1)
        crowd = [stack.enter_context(closing(silent(server, endpoint))) for _ in range(60)]
        eventually(lambda: not any(map(is_open, crowd[:40])), "the oldest ones were dropped")
        assert peers_of(server).unauthenticated.count <= 20
        eventually(lambda: len(peers_of(server)) <= 20, "and are closed")
        assert comes_in(server, "elsewhere", BYSTANDER)
        assert comes_in(server, "there", CROWD)
        assert all(map(is_open, crowd[45:]))
        assert is_open(bystander)


@pytest.mark.parametrize("endpoint", ["mqtt", "mqtts", "ws", "wss"])
def test_an_address_is_counted_from_accept_on(certificates: Certificates, endpoint: str) -> None:
    """Sockets count for their address from accept on, and a client that sends CONNECT at once comes in all the same."""
    with serving(certificates, connections_per_address=5) as server, ExitStack() as stack:
        crowd = [stack.enter_context(closing(silent(server, endpoint))) for _ in range(60)]
        eventually(lambda: not any(map(is_open, crowd[:55])), "the oldest ones were dropped")
        assert all(map(is_open, crowd[55:]))
        assert peers_of(server).unauthenticated.count == 5
        with ExitStack() as clients:
            for number in range(5):
                assert isinstance(clients.enter_context(Wire(server)).connect(f"c{number}"), Connack)
            with Wire(server) as sixth:
                refused = sixth.connect("c5")
                assert (type(refused), refused.reason_code) == (Connack, ReasonCode.QUOTA_EXCEEDED)
            assert comes_in(server, "c4", CROWD)  # takes the place of its own
            assert comes_in(server, "elsewhere", BYSTANDER)


#: A server that may open 80 files, and waits for CONNECT as long as it takes.
FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
from statestore_client.server import BrokerLimits, EmbeddedServer
with EmbeddedServer(broker_limits=BrokerLimits(connect_timeout_s=600)) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


def test_silent_sockets_do_not_take_all_files() -> None:
    """Unauthenticated sockets get a quarter of the files that the process may open."""
    command = [sys.executable, "-c", FEW_FILES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process, ExitStack() as stack:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for _ in range(150):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S, (CROWD, 0)))
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S, (BYSTANDER, 0)) as bystander:
            bystander.sendall(CONNECT_AND_PING)
            assert bystander.recv(1) == b"\x20"
        process.communicate()


def test_clients_do_not_count_as_unauthenticated(certificates: Certificates) -> None:
    """A limit of one unauthenticated peer lets any number of clients in, one after another."""
    with serving(certificates, unauthenticated_connections=1) as server, ExitStack() as stack:
        wires = []
        for number in range(10):
            wires.append(wire := stack.enter_context(Wire(server)))
            assert isinstance(wire.connect(f"c{number}"), Connack)
        for wire in wires:
            wire.send(Pingreq())
            assert wire.receive() == Pingresp()
        assert peers_of(server).clients.count == 10


def test_a_held_connect_makes_a_client() -> None:
    """A CONNECT that is held for stealing its own session counts as unauthenticated, and once let in as a client."""
    with EmbeddedServer() as server, ExitStack() as stack:
        wires = [stack.enter_context(Wire(server)) for _ in range(7)]
        for wire in wires[:6]:
            assert isinstance(wire.connect("same"), Connack)
        wires[6].begin("same")
        eventually(lambda: peers_of(server).unauthenticated.count == 1)
        eventually(lambda: server.counters.held_connects == 1)
        server.clock.advance(1)
        assert isinstance(wires[6].receive(), Connack)
        eventually(lambda: (peers_of(server).unauthenticated.count, peers_of(server).clients.count) == (0, 1))


@pytest.mark.parametrize("endpoint", ["mqtts", "wss"])
def test_the_time_for_connect_runs_from_accept(certificates: Certificates, endpoint: str) -> None:
    """The time for CONNECT runs from accept, a TLS handshake included."""
    context = ssl.create_default_context(cafile=certificates.ca_file)
    with serving(certificates, connect_timeout_s=100) as server, closing(silent(server, endpoint)) as sock:
        eventually(lambda: len(peers_of(server)) == 1)
        server.clock.advance(60)
        with context.wrap_socket(sock, server_hostname="127.0.0.1") as secured:
            eventually(lambda: len(server._running()._driver or ()) == 1, "the handshake is over")
            server.clock.advance(60)
            with pytest.raises((OSError, AssertionError)):
                assert secured.recv(1)
        eventually(lambda: len(peers_of(server)) == 0)


# -- how much ----------------------------------------------------------------------------------------------------------


def test_unfinished_connects_cost_the_clients_nothing(certificates: Certificates) -> None:
    """Unfinished CONNECTs have a budget of their own: beyond it the largest goes, and clients are not affected."""
    limits = {"unfinished_bytes": 300_000, "unauthenticated_bytes": 300_000}
    with serving(certificates, **limits) as server, ExitStack() as stack, Wire(server) as client:
        client.connect("client")
        client.send(UNFINISHED, bytes(100_000))
        for number in range(10):
            sock = stack.enter_context(closing(silent(server, DOORS[number % 2 * 4])))
            sock.sendall(UNFINISHED_CONNECT + bytes(119_000 - number))
            holds_more_than(server, min(1, number) * 119_000 + 118_000)
            assert peers_of(server).unauthenticated.held_bytes <= 300_000
        eventually(lambda: peers_of(server).unauthenticated.count == 2)
        assert comes_in(server, "another", CROWD)
        client.send(bytes(150_000 - 100_004), Pingreq())
        assert client.receive() == Pingresp()


@pytest.mark.parametrize("endpoint", ["mqtt", "ws"])
def test_a_connect_that_is_too_large(certificates: Certificates, endpoint: str) -> None:
    """A CONNECT of more than 128 KiB gets 0x95 when its length is known; later packets may be larger."""
    with serving(certificates) as server:
        too_large = Connect("c" * 60_000, username="u" * 60_000, password=b"p" * 20_000)
        behind = encode(Connect("c")) + encode(Publish("t", bytes(200_000), 1, packet_id=1))
        with ExitStack() as stack:
            for data, expected in ((encode(too_large), [Connack]), (behind, [Connack, Puback])):
                if endpoint == "mqtt":
                    wire: Any = stack.enter_context(Wire(server))
                    wire.send(data)
                else:
                    wire = stack.enter_context(RawWebSocket(int(server.urls["ws"].split(":")[2].partition("/")[0])))
                    wire.sock.sendall(frame(BINARY, data))
                answers = [wire.receive() for _ in expected]
                assert [type(answer) for answer in answers] == expected
                assert answers[0].reason_code == (ReasonCode.PACKET_TOO_LARGE if len(expected) == 1 else 0)


def test_connects_that_wait_for_a_verdict_are_bounded() -> None:
    """Whole CONNECTs that wait for a verdict have a budget as well, and the largest gets 0x97."""
    release = threading.Event()

    def slow(token: bytes) -> str | None:
        assert release.wait(TIMEOUT_S)
        return "u"

    limits = BrokerLimits(unauthenticated_bytes=250_000)
    with EmbeddedServer(token_verifier=slow, broker_limits=limits) as server, ExitStack() as stack:
        wires = [stack.enter_context(Wire(server)) for _ in range(6)]
        for number, wire in enumerate(wires):
            properties = ConnectProperties(authentication_method="K8S-SAT", authentication_data=b"%d" % number)
            wire.begin(f"c{number}", properties=properties, will=Will("w", bytes(60_000 - 100 * number)))
            holds_more_than(server, min(4, number + 1) * 59_000)
        for wire in wires[:2]:
            (refused,) = wire.rest()
            assert (type(refused), refused.reason_code) == (Connack, ReasonCode.QUOTA_EXCEEDED)
        release.set()
        assert [wire.receive().reason_code for wire in wires[2:]] == [0] * 4
        eventually(lambda: peers_of(server).held_bytes == 0)


def test_a_handshake_of_websocket_counts(certificates: Certificates) -> None:
    """An unfinished WebSocket handshake counts until it is answered."""
    with serving(certificates, unauthenticated_bytes=20_000) as server, ExitStack() as stack:
        socks = [stack.enter_context(closing(silent(server, "ws"))) for _ in range(3)]
        for number, sock in enumerate(socks):
            sock.sendall(handshake()[:-2] + b"X: " + b"x" * (8_000 + number))
            holds_more_than(server, min(2, number + 1) * 8_000)
        eventually(lambda: not is_open(socks[2]), "the largest is gone")
        assert [is_open(sock) for sock in socks[:2]] == [True, True]


def test_of_the_clients_whoever_holds_most_has_to_go(certificates: Certificates) -> None:
    """When a client has to go, it is one of the address that holds most in all, not the single largest."""
    with serving(certificates, unfinished_bytes=250_000) as server, ExitStack() as stack:
        crowd = [stack.enter_context(Wire(server, source=CROWD)) for _ in range(3)]
        bystander = stack.enter_context(Wire(server, source=BYSTANDER))
        for number, wire in enumerate(crowd):
            wire.connect(f"crowd{number}")
            wire.send(UNFINISHED, bytes(49_000 + 1_000 * number))
        bystander.connect("bystander")
        eventually(lambda: peers_of(server).held_bytes > 150_000)
        bystander.send(UNFINISHED, bytes(110_000))
        (told,) = crowd[2].rest()
        assert (type(told), told.reason_code) == (Disconnect, ReasonCode.QUOTA_EXCEEDED)
        bystander.send(bytes(150_000 - 110_004), Pingreq())
        assert bystander.receive() == Pingresp()
        for wire in crowd[:2]:
            wire.expect_nothing()


# -- the rule ----------------------------------------------------------------------------------------------------------


class Link:
    """What may be dropped."""

    def drop(self, error: PacketError) -> None: ...


def test_who_has_to_go_is_of_an_address_with_most() -> None:
    """The peer that goes is of an address with most, as a naive choice says, for random arrivals and departures."""
    rng = random.Random(1)
    group, peers = Group(), []
    for step in range(2_000):
        action = rng.random()
        if action < 0.4 or not peers:
            peer = Peer("", f"n{rng.randrange(8)}", step, Link(), step)
            group.add(peer)
            peers.append(peer)
        elif action < 0.6:
            group.remove(peer := rng.choice(peers))
            peers.remove(peer)
        else:
            peer = rng.choice(peers)
            group.hold(peer, rng.randrange(-peer.held_bytes, 100))
        assert (group.count, group.held_bytes) == (len(peers), sum(peer.held_bytes for peer in peers))
        if not peers:
            continue
        counts = Counter(peer.network for peer in peers)
        oldest = group.oldest_of_most(peers[-1])
        assert counts[oldest.network] == max(counts.values())
        assert oldest is next(peer for peer in peers if peer.network == oldest.network)
        if counts[peers[-1].network] == max(counts.values()):
            assert oldest.network == peers[-1].network
        if group.held_bytes:
            held = Counter[str]()
            for peer in peers:
                held[peer.network] += peer.held_bytes
            largest = group.largest(peers[-1])
            assert held[largest.network] == max(held.values())
            assert largest.held_bytes == max(peer.held_bytes for peer in peers if peer.network == largest.network)
