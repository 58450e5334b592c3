"""Attacks over real sockets: whatever a hostile client does, the others are served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import attrs
import pytest
from hostile_peer import TIMEOUT_S, Peer, request, wall_ms
from support.shells import Shell

from statestore_client import StateStoreClient
from statestore_client.mqtt.packets import (
    ConnectProperties,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    ReasonCode,
    Subscribe,
    Subscription,
    encode,
)
from statestore_client.server import AccessRules, EmbeddedServer
from statestore_client.wire.commands import KeyNotify, Scan
from statestore_client.wire.protocol import notification_topic, response_topic
from statestore_client.wire.replies import Found, Keys, decode_reply

# RESP3, by hand
GET_K = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
SET_K = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"
DEL_K = b"*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n"
SET_K_NX = b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$2\r\nNX\r\n"


@pytest.fixture
def peer(server: EmbeddedServer) -> Iterator[Peer]:
    """The attacker, who hears the answers to its requests."""
    with Peer(server, "attacker") as attacker:
        attacker.subscribe("answers")
        yield attacker
        with Peer(server, "innocent") as innocent:  # whatever happened, the server still serves
            assert innocent.answers()


# -- requests that are the same, and that are not ----------------------------------------------------------------------


@pytest.mark.attack("MQTT", "a request of another user under a client identifier that is free again")
def test_a_request_of_another_user_is_not_taken_for_an_earlier_one() -> None:
    """When a session is over, another user who has its client identifier and repeats its request gets his own answer,
    and not what the first user was told.
    """
    passwords = {"alice": "a", "bob": "b"}
    asked = {"ts": f"{wall_ms()}:0:peer"}
    with EmbeddedServer(passwords=passwords) as server:
        answers = []
        for user, password in passwords.items():
            with Peer(server, "shared", username=user, password=password.encode()) as peer:
                peer.subscribe("answers")
                answers += [peer.ask(SET_K_NX, **asked), peer.ask(SET_K_NX, **asked)]
                peer.send(Disconnect())
    assert answers == [b"+OK\r\n", b"+OK\r\n", b":-1\r\n", b":-1\r\n"]


def test_correlation_data_that_never_changes_deletes_each_time(tmp_path: Path) -> None:
    """A DEL without ``__ts``, as the document sends it, that always has the same correlation data is carried out each
    time, over a reconnect and a restart, too. A redelivered one is not.
    """
    session = {"clean_start": False, "properties": ConnectProperties(session_expiry=60)}
    answers = []
    again = attrs.evolve(request(DEL_K, ts=None), dup=True)
    for _ in range(2):
        with EmbeddedServer(data=tmp_path) as server:
            for _ in range(2):
                with Peer(server, "c", **session) as peer:
                    peer.subscribe("answers")
                    peer.ask(SET_K, correlation=b"other")
                    answers += [peer.ask(DEL_K, ts=None), peer.ask(GET_K)]
            with Peer(server, "c", **session) as peer:
                peer.ask(SET_K, correlation=b"other")
                answers += [peer.ask_with(again), peer.ask(GET_K)]
    assert answers == ([b":1\r\n", b"$-1\r\n"] * 2 + [b":1\r\n", b"$1\r\nv\r\n"]) * 2


# -- clients that take small packets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["service", "document"])
@pytest.mark.parametrize("most", [400, 5_000])
def test_an_answer_that_is_too_large_for_its_client_is_an_error(dialect: str, most: int) -> None:
    """A client that takes packets up to a size gets every answer that fits, to the last bytes, and an error with both
    sizes in place of a longer one, which a broker leaves out; and a notification without the value.
    """
    small = ConnectProperties(maximum_packet_size=most)
    with (
        EmbeddedServer(dialect=dialect) as server,
        StateStoreClient(server.url) as writer,
        Peer(server, "c", properties=small) as peer,
    ):
        peer.subscribe("answers")
        writer.set("k", b"v")
        room = most - len(encode(answer_to(peer, GET_K))) - 20
        for size in (room - 10, room + 30, 100_000):
            writer.set("k", b"v" * size)
            payload = peer.ask(GET_K)
            if size < room:
                assert decode_reply(payload) == Found(b"v" * size)
            else:
                assert payload.startswith(b"-ERR the answer takes ")
                assert b" bytes, and this client %d " % most in payload
        writer.set_many((b"%064d" % number, b"") for number in range(1_000))
        assert peer.ask(Scan(b"*").encode()).startswith(b"-ERR the answer takes ")
        topic = notification_topic("c", b"k")
        if dialect == "document":
            peer.subscribe(topic)
        assert peer.ask(KeyNotify(b"k").encode()) == b"+OK\r\n"
        writer.set("k", b"v" * 100_000)
        notification = peer.receive()
        assert isinstance(notification, Publish)
        assert (notification.topic, notification.payload) == (topic, b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n")


def answer_to(peer: Peer, payload: bytes) -> Publish:
    peer.send(request(payload))
    while not isinstance(answer := peer.receive(), Publish):
        pass
    peer.send(Puback(answer.packet_id))
    return answer


# -- what a listing tells ----------------------------------------------------------------------------------------------


@pytest.mark.attack("MQTT", "read names of keys out of a continuation token, or move it")
def test_a_continuation_token_tells_no_key(tmp_path: Path) -> None:
    """Who may list ``*/public`` learns no other key from the continuation tokens, cannot make one, and goes on with his
    own after a restart of the server.
    """
    rules = AccessRules.parse("everybody\n publish answers\n subscribe answers\n write *\n read */public\n")
    found, token = [], b""
    hidden = [b"customers/%04d/secret" % number for number in range(5_200)]
    for life in range(3):
        with EmbeddedServer(data=tmp_path, acl=rules) as server, Peer(server, "c") as peer:
            peer.subscribe("answers")
            if not life:
                with StateStoreClient(server.url) as writer:
                    writer.set_many((key, b"v") for key in (*hidden, b"a/public", b"z/public"))
            forged = b"\x01" + crc32(b"*/public").to_bytes(4) + hidden[77]
            for other in (forged, bytes(80), bytes(reversed(token))):
                assert peer.ask(Scan(b"*/public", other).encode()) == b"-ERR syntax error\r\n"
            page = decode_reply(peer.ask(Scan(b"*/public", token or None).encode()))
        assert isinstance(page, Keys)
        found += page.keys
        token = page.token or b""
        assert b"customers" not in token
        if not token:
            break
    assert found == [b"a/public", b"z/public"]
    assert life


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 15, 17, 65_535])
def test_correlation_data_of_any_length_is_answered(peer: Peer, length: int) -> None:
    """A request with correlation data of another length than our 16 bytes is answered with the same bytes."""
    correlation = bytes(length)
    peer.send(request(SET_K, correlation=correlation))
    assert isinstance(peer.receive(), Puback)
    answer = peer.receive()
    assert isinstance(answer, Publish)
    assert (answer.payload, answer.properties.correlation_data) == (b"+OK\r\n", correlation)


def test_long_correlation_data_drives_no_responses_out_of_the_cache(server: EmbeddedServer, peer: Peer) -> None:
    """A SET NX that is repeated after a reconnect gets its first answer, whatever long correlation data others sent
    meanwhile."""
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
    """An expiry of up to 64 bits of milliseconds is accepted and a larger one is refused, and the server's timer
    survives both."""
    command = b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(expiry), expiry)
    assert peer.ask(command) == answer


@pytest.mark.parametrize(
    "text", ["", "x", "1:2", "-1:0:n", "+1:0:n", "1:0:", "1:0:a:b", "9" * 60_000 + ":0:n", "1:0:" + "n" * 1025]
)
def test_malformed_timestamps_and_tokens(peer: Peer, text: str) -> None:
    """Malformed timestamps and tokens do not reach the store: a token of 60 KB with each key would get around the
    quota."""
    assert peer.ask(SET_K, ts=text) == b"-ERR malformed timestamp\r\n"
    assert peer.ask(SET_K, ft=text) == b"-ERR malformed timestamp\r\n"
    assert peer.ask(GET_K) == b"$-1\r\n"


@pytest.mark.attack("MQTT", "timestamps from the future, to stop the clock of others")
async def test_the_greatest_timestamps_that_are_allowed_stop_nobody(
    shell: Shell, server: EmbeddedServer, peer: Peer
) -> None:
    """While one client is nearly a minute ahead with an exhausted counter, others write, lock and see versions
    ascend."""
    assert peer.ask(SET_K, ts=f"{wall_ms() + 59_000}:{2**64 - 1}:peer") == b"+OK\r\n"
    assert b"too far in the future" in peer.ask(SET_K, ts=f"{wall_ms() + 70_000}:0:peer")
    async with shell.client(server.url) as store:
        versions = [(await store.set("k", b"%d" % i)).version for i in range(20)]
        assert versions == sorted(set(versions))
        async with store.lock("job", lease=5) as lease:
            assert (await store.set("guarded", b"1", fencing_token=lease.fencing_token)).applied


@pytest.mark.attack("MQTT", "patterns that take for ever")
def test_a_catastrophic_scan_holds_nobody_up(server: EmbeddedServer, peer: Peer) -> None:
    """Scan patterns made for backtracking, over a key of a megabyte, are refused when they cost too much."""
    key = b"a" * 1_000_000
    assert peer.ask(b"*3\r\n$3\r\nSET\r\n$1000000\r\n%b\r\n$1\r\nv\r\n" % key) == b"+OK\r\n"
    with Peer(server, "innocent") as innocent:
        for pattern, expected in (
            (b"*a" * 500 + b"b", b"*1\r\n*0\r\n"),
            (b"*" + b"a" * 100 + b"b", b"*1\r\n*0\r\n"),
            (b"*" + b"[ab]" * 500 + b"c*", b"-ERR syntax error\r\n"),
            (b"*" + b"a" * 2_000 + b"b", b"*1\r\n*0\r\n"),  # what comes last is looked for at the end only
            (b"*" + b"a" * 2_000 + b"b*", b"-ERR syntax error\r\n"),
        ):
            started = time.monotonic()
            peer.send(request(b"*2\r\n$4\r\nSCAN\r\n$%d\r\n%b\r\n" % (len(pattern), pattern)))
            assert innocent.answers()
            assert time.monotonic() - started < 1.5
            while not isinstance(answer := peer.receive(), Publish):
                pass
            assert answer.payload == expected


# -- topics ------------------------------------------------------------------------------------------------------------


@pytest.mark.attack("MQTT", "answers into the topic of another client")
async def test_answers_into_the_topic_of_another_client(shell: Shell, server: EmbeddedServer, peer: Peer) -> None:
    """An answer that an attacker makes the server send to another client is unknown there, and dropped."""
    async with shell.client(server.url, client_id="victim") as store:
        for number in range(200):
            peer.send(request(SET_K, answers=response_topic("victim"), correlation=number.to_bytes(16, "big")))
        peer.acknowledged(200)
        assert (await store.set("mine", b"1")).applied
        assert store.stats.late_or_unknown_replies == 200


@pytest.mark.attack("MQTT", "counterfeit notifications")
async def test_a_counterfeit_notification_is_not_delivered(shell: Shell, server: EmbeddedServer, peer: Peer) -> None:
    """A counterfeit notification from the far future is not delivered, since only the server may publish
    notifications."""
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


@pytest.mark.parametrize("packet", ["topic", "filter", "filter with wildcards"])
@pytest.mark.attack("MQTT", "topics of sixty thousand levels")
def test_topics_and_filters_of_sixty_thousand_levels(server: EmbeddedServer, peer: Peer, packet: str) -> None:
    """A topic or filter of sixty thousand levels ends the connection (0x81), and the server goes on."""
    deep = "/" * 60_000
    peer.send(
        {
            "topic": Publish(deep, b"x", 1, packet_id=1),
            "filter": Subscribe(1, (Subscription(deep, 0),)),
            "filter with wildcards": Subscribe(1, (Subscription("/".join("+" * 30_000), 0),)),
        }[packet]
    )
    assert peer.last_words() == ReasonCode.MALFORMED_PACKET
    with Peer(server, "other") as other:
        assert other.answers()


def test_a_response_topic_of_sixty_thousand_levels(peer: Peer) -> None:
    """A request with a response topic of sixty thousand levels is acknowledged, and nobody can subscribe to the
    topic."""
    peer.send(request(SET_K, answers="/" * 60_000))
    peer.acknowledged(1)


# -- packets -----------------------------------------------------------------------------------------------------------


@pytest.mark.attack("MQTT", "ten thousand user properties")
def test_ten_thousand_user_properties(peer: Peer) -> None:
    """Up to a thousand user properties are read, and more end the connection (0x97)."""
    assert peer.ask(SET_K, more=(("a", "b"),) * 1000) == b"+OK\r\n"
    peer.send(request(SET_K, more=(("a", "b"),) * 10_000))
    assert peer.last_words() == ReasonCode.QUOTA_EXCEEDED


def test_acknowledgements_of_nothing(peer: Peer) -> None:
    """Unasked acknowledgements of QoS 2 are answered, and other ones are not (MQTT 5.0, 4.3.3)."""
    peer.send(Puback(7), Pubcomp(7), Pubrel(7), Pubrec(7))
    assert peer.receive() == Pubcomp(7)
    assert peer.receive() == Pubrel(7)
    assert peer.answers()


def test_qos_2_that_is_never_completed(server: EmbeddedServer, peer: Peer) -> None:
    """QoS 2 messages that are never completed end the connection in MQTT 5.0 (0x93), and are at most 65,535 in
    3.1.1."""
    peer.send(*(Publish("t", b"", 2, packet_id=number) for number in range(1, 1200)))
    assert peer.last_words() == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    with Peer(server, "old", version=4) as old:
        old.send(*(Publish("t", b"", 2, packet_id=number) for number in range(1, 5_000)))
        old.acknowledged(4_999)
        assert old.answers()


@pytest.mark.attack("MQTT", "floods of KEYNOTIFY")
def test_keynotify_flood(server: EmbeddedServer, peer: Peer) -> None:
    """Twenty thousand observed keys of one client are forgotten when its connection ends."""
    store = server._running()._service
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
    """While one client's three hundred expensive requests take their turns, others are served in between."""
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
    """A change with hundreds of watchers is one turn of many, and each watcher gets all changes in order."""
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
    """Fifty watchers that read nothing hold one copy of a large value, and not fifty."""
    driver = server._running()._driver
    assert driver is not None
    watchers = [Peer(server, f"watcher{number}") for number in range(50)]
    try:
        for watcher in watchers:
            watcher.send(request(b"*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n", answers="nobody"))
            watcher.acknowledged(1)
        value = bytes(8_000_000)
        peer.send(request(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8000000\r\n" + value + b"\r\n", answers="nobody"))
        peer.acknowledged(1)
        assert peer.answers()
        assert 8_000_000 < driver.broker.usage.held_bytes < 9_000_000
    finally:
        for watcher in watchers:
            watcher.reset()


def test_connections_that_end_in_the_middle(server: EmbeddedServer, peer: Peer) -> None:
    """Resets in the middle of a packet, and hundreds of takeovers of one client id, stop nobody."""
    for number in range(150):
        half = Peer(server, f"half-{number}")
        half.send(bytes.fromhex("30f09309") + bytes(number))  # PUBLISH of 150,000 bytes, and not many of them
        half.reset()
        Peer(server, "same").sock.close()
    assert peer.answers()
    server_ = server._running()
    assert server_._driver is not None
    deadline = time.monotonic() + TIMEOUT_S
    while len(server_._driver) > 1 or server_._driver.unfinished_bytes:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert server_._broker.usage.sessions == 1
