"""Attacks over real sockets: whatever one peer does, the others are served. A hostile client, and a hostile broker."""

from __future__ import annotations

import asyncio
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

import pytest
from proxy import Proxy
from shells import Shell

from statestore_client import (
    AsyncStateStoreClient,
    ConnectionLostError,
    InvalidArgumentError,
    StateStoreError,
    UnexpectedReplyError,
)
from statestore_client.mqtt.packets import (
    Connack,
    ConnackProperties,
    Connect,
    ConnectProperties,
    Disconnect,
    Packet,
    PacketDecoder,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    encode,
)
from statestore_client.server import EmbeddedServer
from statestore_client.wire.topics import COMMAND_TOPIC, notification_topic, response_topic

TIMEOUT_S = 10.0

# RESP3, by hand
GET_K = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
SET_K = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"
SET_K_NX = b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$2\r\nNX\r\n"


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Peer:
    """A bare socket that speaks packets, in an order and with contents that no library would send."""

    def __init__(self, server: EmbeddedServer, client_id: str, **options: Any) -> None:
        version = options.get("version", 5)
        self.sock = socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S)
        self._version = version
        self._decoder = PacketDecoder(version=version, max_packet_size=1 << 28)
        self._packets: list[Packet] = []
        self.send(Connect(client_id, version=version, **{k: v for k, v in options.items() if k != "version"}))
        self.connack = self.receive()

    def send(self, *packets: Packet | bytes) -> None:
        self.sock.sendall(b"".join(p if isinstance(p, bytes) else encode(p, self._version) for p in packets))

    def receive(self) -> Packet:
        while not self._packets:
            data = self.sock.recv(1 << 16)
            assert data, "the server closed the connection"
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)

    def last_words(self) -> int:
        """The reason code of the DISCONNECT with which the server ends the connection."""
        while not isinstance(packet := self.receive(), Disconnect):
            pass
        return packet.reason_code

    def subscribe(self, topic_filter: str) -> int:
        self.send(Subscribe(1, (Subscription(topic_filter, 1),)))
        suback = self.receive()
        assert isinstance(suback, Suback)
        return suback.reason_codes[0]

    def ask(self, payload: bytes, **options: Any) -> bytes:
        """One request to the state store; ``subscribe("answers")`` first."""
        self.send(request(payload, **options))
        while not isinstance(packet := self.receive(), Publish):
            pass
        if packet.qos:
            self.send(Puback(packet.packet_id))
        return packet.payload

    def acknowledged(self, count: int) -> None:
        """Wait for so many PUBACKs or PUBRECs."""
        while count:
            count -= isinstance(self.receive(), (Puback, Pubrec))

    def answers(self) -> bool:
        """Whether the server serves this peer."""
        self.send(Pingreq())
        return isinstance(self.receive(), Pingresp)

    def reset(self) -> None:
        """Close as a crashing machine does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.sock.close()


def request(
    payload: bytes,
    *,
    correlation: bytes | None = b"0123456789abcdef",
    answers: str = "answers",
    ts: str | None = "now",
    ft: str | None = None,
    more: tuple[tuple[str, str], ...] = (),
) -> Publish:
    texts = (("__ts", f"{wall_ms()}:0:peer" if ts == "now" else ts), ("__ft", ft))
    properties = (*((name, text) for name, text in texts if text is not None), *more)
    return Publish(
        COMMAND_TOPIC,
        payload,
        1,
        packet_id=1,
        properties=PublishProperties(response_topic=answers, correlation_data=correlation, user_properties=properties),
    )


@pytest.fixture
def peer(server: EmbeddedServer) -> Iterator[Peer]:
    """The attacker, who hears the answers to its requests."""
    with Peer(server, "attacker") as attacker:
        attacker.subscribe("answers")
        yield attacker
        with Peer(server, "innocent") as innocent:  # whatever happened, the server still serves
            assert innocent.answers()


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 15, 17, 65_535])
def test_correlation_data_of_any_length_is_answered(peer: Peer, length: int) -> None:
    """Other clients than ours may use other lengths than 16 bytes; the answer has the same bytes."""
    correlation = bytes(length)
    peer.send(request(SET_K, correlation=correlation))
    assert isinstance(peer.receive(), Puback)
    answer = peer.receive()
    assert isinstance(answer, Publish)
    assert (answer.payload, answer.properties.correlation_data) == (b"+OK\r\n", correlation)


def test_long_correlation_data_drives_no_responses_out_of_the_cache(server: EmbeddedServer, peer: Peer) -> None:
    """A SET NX that is repeated after a reconnect gets its first answer, whatever others sent meanwhile."""
    lasting = ConnectProperties(session_expiry=60)
    with Peer(server, "victim", properties=lasting) as victim:
        victim.subscribe("victim/answers")
        asked = request(SET_K_NX, answers="victim/answers")
        victim.send(asked)
        assert isinstance(victim.receive(), Puback)
        answer = victim.receive()
        assert isinstance(answer, Publish)
        assert answer.payload == b"+OK\r\n"
        victim.send(Puback(answer.packet_id))
        victim.reset()
    for number in range(600):
        peer.send(request(SET_K, correlation=number.to_bytes(2, "big") + bytes(65_000), answers="nobody"))
        peer.acknowledged(1)
    with Peer(server, "victim", clean_start=False, properties=lasting) as victim:
        victim.send(asked)
        assert isinstance(victim.receive(), Puback)
        answer = victim.receive()
        assert isinstance(answer, Publish)
        assert answer.payload == b"+OK\r\n"


@pytest.mark.parametrize(
    ("expiry", "answer"),
    [
        (b"0", b"-ERR syntax error\r\n"),
        (b"-1", b"-ERR syntax error\r\n"),
        (b"9223372036854775807", b"+OK\r\n"),
        (b"9223372036854775808", b"-ERR syntax error\r\n"),
        (b"1" + b"0" * 30, b"-ERR syntax error\r\n"),
        (b"9" * 5000, b"-ERR syntax error\r\n"),
        ("١".encode(), b"-ERR syntax error\r\n"),  # a digit, but none of ASCII
    ],
)
def test_extreme_expiries(peer: Peer, expiry: bytes, answer: bytes) -> None:
    """64 bits of milliseconds are an expiry, everything beyond is none; the server's timer survives either."""
    command = b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(expiry), expiry)
    assert peer.ask(command) == answer


@pytest.mark.parametrize(
    "text", ["", "x", "1:2", "-1:0:n", "+1:0:n", "1:0:", "1:0:a:b", "9" * 60_000 + ":0:n", "1:0:" + "n" * 1025]
)
def test_malformed_timestamps_and_tokens(peer: Peer, text: str) -> None:
    """Neither reaches the store: a token of 60 KB with each key would be a way around the quota."""
    assert peer.ask(SET_K, ts=text) == b"-ERR malformed timestamp\r\n"
    assert peer.ask(SET_K, ft=text) == b"-ERR malformed timestamp\r\n"
    assert peer.ask(GET_K) == b"$-1\r\n"


async def test_the_greatest_timestamps_that_are_allowed_stop_nobody(
    shell: Shell, server: EmbeddedServer, peer: Peer
) -> None:
    """One client is nearly a minute ahead with an exhausted counter. Others write, lock and see versions ascend."""
    assert peer.ask(SET_K, ts=f"{wall_ms() + 59_000}:{2**64 - 1}:peer") == b"+OK\r\n"
    assert b"too far in the future" in peer.ask(SET_K, ts=f"{wall_ms() + 70_000}:0:peer")
    async with shell.client(server.url) as store:
        versions = [(await store.set("k", b"%d" % i)).version for i in range(20)]
        assert versions == sorted(set(versions))
        async with store.lock("job", lease=5) as lease:
            assert (await store.set("guarded", b"1", fencing_token=lease.fencing_token)).applied


def test_a_catastrophic_scan_holds_nobody_up(server: EmbeddedServer, peer: Peer) -> None:
    """Patterns made for backtracking, over a key of a megabyte: those that cost too much are refused."""
    key = b"a" * 1_000_000
    assert peer.ask(b"*3\r\n$3\r\nSET\r\n$1000000\r\n%b\r\n$1\r\nv\r\n" % key) == b"+OK\r\n"
    with Peer(server, "innocent") as innocent:
        for pattern, expected in (
            (b"*a" * 500 + b"b", b"*1\r\n*0\r\n"),
            (b"*" + b"a" * 100 + b"b", b"*1\r\n*0\r\n"),
            (b"*" + b"[ab]" * 500 + b"c*", b"-ERR syntax error\r\n"),
            (b"*" + b"a" * 2_000 + b"b", b"-ERR syntax error\r\n"),
        ):
            started = time.monotonic()
            peer.send(request(b"*2\r\n$4\r\nSCAN\r\n$%d\r\n%b\r\n" % (len(pattern), pattern)))
            assert innocent.answers()
            assert time.monotonic() - started < 1.5
            while not isinstance(answer := peer.receive(), Publish):
                pass
            assert answer.payload == expected


# -- topics ------------------------------------------------------------------------------------------------------------


async def test_answers_into_the_topic_of_another_client(shell: Shell, server: EmbeddedServer, peer: Peer) -> None:
    """Who lets the server answer somebody else reaches them, but is not believed: unknown answers are dropped."""
    async with shell.client(server.url, client_id="victim") as store:
        for number in range(200):
            peer.send(request(SET_K, answers=response_topic("victim"), correlation=number.to_bytes(16, "big")))
        peer.acknowledged(200)
        assert (await store.set("mine", b"1")).applied
        assert store.stats.late_or_unknown_replies == 200


async def test_a_counterfeit_notification_is_not_delivered(shell: Shell, server: EmbeddedServer, peer: Peer) -> None:
    """Only the server speaks on notification topics: one from the far future would end the watch in silence."""
    forged = Publish(
        notification_topic("victim", b"k"),
        b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$6\r\nforged\r\n",
        1,
        packet_id=1,
        properties=PublishProperties(user_properties=(("__ts", f"{2**63 - 1}:0:peer"),)),
    )
    async with shell.client(server.url, client_id="victim") as store, store.watch("k") as events:
        peer.send(forged)
        assert peer.last_words() == ReasonCode.NOT_AUTHORIZED
        await store.set("k", b"real")
        assert (await events.get(timeout=5)).value == b"real"


def test_topics_and_filters_of_sixty_thousand_levels(peer: Peer) -> None:
    """Refused one by one; the connection goes on."""
    deep = "/" * 60_000
    peer.send(Publish(deep, b"x", 1, packet_id=1))
    assert peer.receive() == Puback(1, ReasonCode.TOPIC_NAME_INVALID)
    assert peer.subscribe(deep) == ReasonCode.TOPIC_FILTER_INVALID
    assert peer.subscribe("/".join("+" * 30_000)) == ReasonCode.TOPIC_FILTER_INVALID
    assert peer.ask(SET_K, answers="answers") == b"+OK\r\n"
    peer.send(request(SET_K, answers=deep))
    peer.acknowledged(1)


# -- packets -----------------------------------------------------------------------------------------------------------


def test_ten_thousand_user_properties(peer: Peer) -> None:
    """Up to a thousand are read, with more the connection ends (0x97)."""
    assert peer.ask(SET_K, more=(("a", "b"),) * 1000) == b"+OK\r\n"
    peer.send(request(SET_K, more=(("a", "b"),) * 10_000))
    assert peer.last_words() == ReasonCode.QUOTA_EXCEEDED


def test_acknowledgements_of_nothing(peer: Peer) -> None:
    """MQTT 5.0, 4.3.3: those of QoS 2 are answered with 0x92, the others with silence."""
    peer.send(Puback(7), Pubcomp(7), Pubrel(7), Pubrec(7))
    assert peer.receive() == Pubcomp(7, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
    assert peer.receive() == Pubrel(7, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
    assert peer.answers()


def test_qos_2_that_is_never_completed(server: EmbeddedServer, peer: Peer) -> None:
    """In MQTT 5.0 the receive maximum ends it (0x93), in 3.1.1 there are no more than 65,535 packet identifiers."""
    peer.send(*(Publish("t", b"", 2, packet_id=number) for number in range(1, 1200)))
    assert peer.last_words() == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    with Peer(server, "old", version=4) as old:
        old.send(*(Publish("t", b"", 2, packet_id=number) for number in range(1, 5_000)))
        old.acknowledged(4_999)
        assert old.answers()


def test_keynotify_flood(server: EmbeddedServer, peer: Peer) -> None:
    """Twenty thousand observed keys of one client are forgotten with its connection."""
    service = server._running()._broker._application
    store: Any = getattr(service, "_store")  # noqa: B009 - the protocol does not know that its service has a store
    for begin in range(0, 20_000, 2_000):
        keys = [b"%05d" % number for number in range(begin, begin + 2_000)]
        peer.send(*(request(b"*2\r\n$9\r\nKEYNOTIFY\r\n$5\r\n%b\r\n" % key, answers="nobody") for key in keys))
        peer.acknowledged(2_000)
    assert store.usage.observations == 20_000
    peer.reset()
    with Peer(server, "innocent") as innocent:
        deadline = time.monotonic() + TIMEOUT_S
        while store.usage.observations:
            assert innocent.answers()
            assert time.monotonic() < deadline
    assert store.usage.bytes == 0


def test_a_burst_of_expensive_requests_stops_nobody(server: EmbeddedServer, peer: Peer) -> None:
    """Who sends three hundred requests at once gets a turn, and others are served before it has had all of them."""
    value = bytes(4_000_000)
    peer.send(request(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4000000\r\n" + value + b"\r\n", answers="nobody"))
    peer.acknowledged(1)
    with Peer(server, "patient") as innocent:
        before = server.counters.received_messages
        peer.send(*(request(GET_K, answers="nobody") for _ in range(300)))
        while server.counters.received_messages == before:
            assert innocent.answers()
        assert innocent.answers()
        assert server.counters.received_messages < before + 300
        peer.acknowledged(300)


def test_many_watchers_of_a_busy_key_stop_nobody(server: EmbeddedServer, peer: Peer) -> None:
    """A change that hundreds are told of is one of many turns; each of them hears of all changes in order."""
    watchers = [Peer(server, f"watcher{number}") for number in range(200)]
    try:
        for watcher in watchers:
            watcher.send(request(b"*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n", answers="nobody"))
            watcher.acknowledged(1)
        values = [b"%02d" % number for number in range(20)]
        sets = [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n" + value + b"\r\n" for value in values]
        peer.send(*(request(s, correlation=s, answers="nobody") for s in sets))
        with Peer(server, "patient") as innocent:
            assert innocent.answers()
        for watcher in watchers:
            heard: list[bytes] = []
            while len(heard) < len(values):
                packet = watcher.receive()
                assert isinstance(packet, Publish)
                watcher.send(Puback(packet.packet_id))
                heard.append(packet.payload[-4:-2])
            assert heard == values
        peer.acknowledged(20)
    finally:
        for watcher in watchers:
            watcher.sock.close()


def test_a_large_value_is_not_copied_for_each_watcher(server: EmbeddedServer, peer: Peer) -> None:
    """Fifty watchers that read nothing hold it once, not fifty times."""
    hub = server._running()._hub
    assert hub is not None
    watchers = [Peer(server, f"watcher{number}") for number in range(50)]
    try:
        for watcher in watchers:
            watcher.send(request(b"*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n", answers="nobody"))
            watcher.acknowledged(1)
        value = bytes(8_000_000)
        peer.send(request(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8000000\r\n" + value + b"\r\n", answers="nobody"))
        peer.acknowledged(1)
        assert peer.answers()
        assert 8_000_000 < hub.broker.held_bytes < 9_000_000
    finally:
        for watcher in watchers:
            watcher.reset()


def test_connections_that_end_in_the_middle(server: EmbeddedServer, peer: Peer) -> None:
    """Resets in the middle of a packet, and hundreds of connections that take the same client id from each other."""
    for number in range(150):
        half = Peer(server, f"half-{number}")
        half.send(bytes.fromhex("30f09309") + bytes(number))  # PUBLISH of 150,000 bytes, and not many of them
        half.reset()
        Peer(server, "same").sock.close()
    assert peer.answers()
    server_ = server._running()
    assert server_._hub is not None
    deadline = time.monotonic() + TIMEOUT_S
    while len(server_._hub) > 1 or server_._hub.unfinished_bytes:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert server_._broker.session_count() == 1


# -- the server's process ----------------------------------------------------------------------------------------------


class Process:
    """``statestore serve`` on a free port."""

    def __init__(self, *, files: int | None = None) -> None:
        def limit() -> None:
            if files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        self.process = subprocess.Popen(
            [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=limit,
        )
        assert self.process.stdout is not None
        found = re.search(rb"mqtt://127.0.0.1:(\d+)", self.process.stdout.readline())
        assert found is not None
        self.port = int(found[1])

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


def test_no_file_descriptors_left() -> None:
    """New connections wait until there are some; the log does not fill the disk meanwhile."""
    with Process(files=40) as server:
        crowd = [socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) for _ in range(100)]
        assert server.process.stderr is not None
        assert b"out of system resource" in server.process.stderr.readline()
        for sock in crowd:
            sock.close()
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as late:
            late.sendall(encode(Connect("late", version=5), 5))
            assert late.recv(1) == b"\x20"
        server.process.terminate()
        _, log = server.process.communicate(timeout=TIMEOUT_S)
        assert server.process.returncode == 0
        assert len(log) < 50_000


async def test_a_server_that_is_stopped_and_goes_on(shell: Shell) -> None:
    """SIGSTOP and SIGCONT under load: every SET NX is applied once, and none is sent again."""
    with Process() as server:
        async with shell.client(server.url, max_in_flight=64) as store:
            tasks = [asyncio.ensure_future(store.set(f"k{i}", b"", condition="NX", timeout=30)) for i in range(400)]
            await tasks[0]
            server.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.3)
            server.process.send_signal(signal.SIGCONT)
            assert all(done.applied for done in await asyncio.gather(*tasks))
            assert store.stats.resent == 0


async def test_nothing_is_executed_by_two_servers(shell: Shell, server: EmbeddedServer) -> None:
    """The old server stops under load, an empty one takes over, the old one wakes up and finds what it was sent."""
    with Process() as old:
        async with Proxy(old.port) as proxy, shell.client(proxy.url, max_in_flight=64) as store:
            calls = [asyncio.ensure_future(store.set(f"k{i}", b"", condition="NX", timeout=20)) for i in range(400)]
            await calls[0]
            old.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.05)
            proxy.target_port = server.port
            proxy.cut()
            results = await asyncio.gather(*calls, return_exceptions=True)
            old.process.send_signal(signal.SIGCONT)
        async with AsyncStateStoreClient(old.url) as there, AsyncStateStoreClient(server.url) as here:
            keys_old = {key async for key in there.scan("*")}
            keys_new = {key async for key in here.scan("*")}
        assert not keys_old & keys_new
        for number, result in enumerate(results):
            if isinstance(result, ConnectionLostError):
                assert result.may_have_been_applied
            else:
                assert not isinstance(result, BaseException)
                assert result.applied
                assert b"k%d" % number in keys_old | keys_new


# -- a hostile broker --------------------------------------------------------------------------------------------------

Say = Callable[[bytes], None]


class EvilBroker:
    """Accepts and acknowledges everything as a good broker does, except what ``behave(packet, say)`` takes over."""

    def __init__(self, behave: Callable[[Packet, Say], bool], *, connack: ConnackProperties | None = None) -> None:
        self._behave = behave
        self._connack = connack or ConnackProperties()
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[Any] | None] = []
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"mqtt://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._listener.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*filter(None, self._tasks), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        self._tasks.append(asyncio.current_task())
        decoder = PacketDecoder(version=None, max_packet_size=1 << 28)
        while data := await reader.read(1 << 16):
            for packet in decoder.feed(data):
                if not self._behave(packet, writer.write):
                    self._answer(packet, writer.write)
        writer.close()

    def _answer(self, packet: Packet, say: Say) -> None:
        if isinstance(packet, Connect):
            say(encode(Connack(False, ReasonCode.SUCCESS, self._connack), 5))
        elif isinstance(packet, Subscribe):
            say(encode(Suback(packet.packet_id, (1,) * len(packet.subscriptions)), 5))
        elif isinstance(packet, Pingreq):
            say(encode(Pingresp(), 5))
        elif isinstance(packet, Publish):
            say(encode(Puback(packet.packet_id), 5) + reply(packet))


def reply(to: Publish, payload: bytes = b"+OK\r\n", **options: Any) -> bytes:
    """What a state store would say, or not."""
    properties = PublishProperties(
        correlation_data=options.get("correlation", to.properties.correlation_data),
        user_properties=options.get("more", (("__stat", "200"), ("__ts", "1:0:store"))),
    )
    topic = to.properties.response_topic or ""
    qos = options.get("qos", 1)
    packet_id = options.get("packet_id", 1) if qos else 0
    return encode(Publish(topic, payload, qos, packet_id=packet_id, properties=properties), 5)


def _byte_by_byte(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        for byte in encode(Puback(packet.packet_id), 5) + reply(packet):
            say(bytes((byte,)))
    return isinstance(packet, Publish)


def _unknown_first(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        for number in range(500):
            say(reply(packet, b"-ERR syntax error\r\n", correlation=number.to_bytes(16, "big"), packet_id=number + 1))
    return False


def _duplicates(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) * 3 + reply(packet) * 50)
    return isinstance(packet, Publish)


def _at_most_once(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) + reply(packet, qos=0))
    return isinstance(packet, Publish)


def _exactly_once(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) + reply(packet, qos=2))
    elif isinstance(packet, Pubrec):
        say(encode(Pubrel(packet.packet_id), 5))
    return isinstance(packet, (Publish, Pubrec))


def _far_future(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) + reply(packet, more=(("__ts", f"{2**63 - 1}:{2**64 - 1}:store"),)))
    return isinstance(packet, Publish)


def _many_properties(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) + reply(packet, more=(("a", "b"),) * 1000))
    return isinstance(packet, Publish)


@pytest.mark.parametrize(
    "behave",
    [_byte_by_byte, _unknown_first, _duplicates, _at_most_once, _exactly_once, _far_future, _many_properties],
)
async def test_odd_answers_are_answers(shell: Shell, behave: Callable[[Packet, Say], bool]) -> None:
    """Cut to bytes, behind unknown ones, repeated, with another QoS, from the far future, with many properties."""
    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        for _ in range(3):
            assert (await store.set("k", b"v", timeout=5)).applied
        assert broker.connections == 1


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff" * 100, b"*1\r\n" * 10_000, b":" + b"9" * 10_000 + b"\r\n", b"$999999999999\r\n", b"+YES\r\n"],
)
async def test_answers_that_are_none(shell: Shell, payload: bytes) -> None:
    """A typed error for the one request; the connection is kept, and the next request is sent on it."""

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish):
            say(encode(Puback(packet.packet_id), 5) + reply(packet, payload))
        return isinstance(packet, Publish)

    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        for _ in range(2):
            with pytest.raises(UnexpectedReplyError):
                await store.set("k", b"v", timeout=5)
        assert broker.connections == 1


async def test_a_window_of_one(shell: Shell) -> None:
    """CONNACK allows one unacknowledged message: a hundred calls go one by one."""
    unacknowledged: list[Publish] = []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish):
            unacknowledged.append(packet)
            assert len(unacknowledged) == 1
            asyncio.get_running_loop().call_soon(_finish, unacknowledged, say)
        return isinstance(packet, Publish)

    def _finish(publishes: list[Publish], say: Say) -> None:
        publish = publishes.pop()
        say(encode(Puback(publish.packet_id), 5) + reply(publish))

    narrow = ConnackProperties(receive_maximum=1)
    async with EvilBroker(behave, connack=narrow) as broker, shell.client(broker.url) as store:
        done = await asyncio.gather(*(store.set(f"k{i}", b"") for i in range(100)))
        assert all(d.applied for d in done)


async def test_a_broker_that_accepts_packets_of_250_bytes(shell: Shell) -> None:
    """SUBSCRIBE fits. Each request is refused before it is sent, with both sizes in the message."""
    tiny = ConnackProperties(maximum_packet_size=250)
    async with EvilBroker(lambda _packet, _say: False, connack=tiny) as broker, shell.client(broker.url) as store:
        with pytest.raises(InvalidArgumentError, match="the broker accepts 250"):
            await store.set("k", b"v")


async def test_a_broker_that_closes_after_suback(shell: Shell) -> None:
    """Back-off grows although each connection was accepted: no storm of connects."""

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Subscribe):
            say(encode(Suback(packet.packet_id, (1,) * len(packet.subscriptions)), 5))
            say(encode(Disconnect(ReasonCode.SERVER_BUSY), 5))
        return isinstance(packet, Subscribe)

    async with EvilBroker(behave) as broker:
        store = shell.client(broker.url, retry_first_connect=True)
        deadline = time.monotonic() + 1.0
        with suppress(StateStoreError):
            await store.open(timeout=0.3)
        while time.monotonic() < deadline:
            with suppress(StateStoreError):
                await store.get("k", timeout=0.3)
        await store.close()
        assert 1 < broker.connections < 12
