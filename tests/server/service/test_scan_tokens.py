"""Continuation tokens of SCAN: they tell nothing, and are good for nothing but the next page of their reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_driver import COMMAND_TOPIC, Server, routed
from store_life import living
from support.durable_store import Follower, ServedWorld, batch_of

from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.server.journal import DamagedRecordError, Stream
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES, ScanTokens
from statestore_client.server.store import KEEP_ALL, StoreLimits
from statestore_client.server.store.keyspace import ScanLimits
from statestore_client.wire.commands import Command, Scan, Set
from statestore_client.wire.protocol import SCAN_ENTRIES
from statestore_client.wire.replies import Entries, ErrorReply, Keys, Reply, decode_reply

PATTERN = b"*/public"
HIDDEN = [b"customers/%03d/secret" % number for number in range(40)]


def server_with(*keys: bytes, examined: int = 10, **options: bytes) -> Server:
    """A page looks at ``examined`` keys."""
    server = Server(limits=StoreLimits(scan=ScanLimits(max_examined=examined)), **options)
    for key in keys:
        server.request(Set(key, b"v").encode())
    return server


def ask(server: Server, command: Command, client: str = "client-id1") -> Reply:
    return decode_reply(routed(server.request(command.encode(), client=client)[0]).payload)


def first_token(server: Server, pattern: bytes = PATTERN) -> bytes:
    reply = ask(server, Scan(pattern))
    assert isinstance(reply, Keys)
    assert reply.token is not None
    return reply.token


def is_refused(server: Server, token: bytes, pattern: bytes = PATTERN) -> bool:
    reply = ask(server, Scan(pattern, token))
    return isinstance(reply, ErrorReply) and reply.error.message == "syntax error"


def test_a_scan_for_entries_is_asked_for_beside_the_payload() -> None:
    """With the user property ``statestore-scan`` the same payload finds entries, text or not, page by page, and without
    it keys.
    """
    server = server_with(*HIDDEN, b"\xff")
    found: list[bytes] = []
    token: bytes | None = None
    while token is not None or not found:
        command = Scan(b"*", token)
        reply = decode_reply(routed(server.request(command.encode(), more=(SCAN_ENTRIES,))[0]).payload)
        assert isinstance(reply, Entries)
        assert all(entry.value == b"v" for entry in reply.entries)
        found += [entry.key for entry in reply.entries]
        token = reply.token
    assert found == [*HIDDEN, b"\xff"]
    assert isinstance(ask(server, Scan(b"*")), Keys)


def test_a_token_tells_no_key() -> None:
    """No part of a key that was looked at is in a token, whatever its length says or a second token of the same place
    does.
    """
    server = server_with(*HIDDEN, b"a/public", b"z/public")
    found, token, tokens = [], None, []
    while True:
        reply = ask(server, Scan(PATTERN, token))
        assert isinstance(reply, Keys)
        found += reply.keys
        token = reply.token
        if token is None:
            break
        tokens.append(token)
        server.advance(0.001)
    assert found == [b"a/public", b"z/public"]
    for token in tokens:
        assert not any(key[i : i + 4] in token for key in HIDDEN for i in range(len(key) - 3))
    assert len({*map(len, tokens)}) == 1
    assert first_token(server) not in tokens


@pytest.mark.parametrize("key", [b"b", b"b" * 20, b"b" * 50])
def test_the_length_of_a_token_tells_nothing(key: bytes) -> None:
    """Short keys give tokens of one length; those of long ones are rounded up."""
    assert len(first_token(server_with(key, b"c", b"d", examined=1))) == 80


@given(st.integers(0, 79), st.integers(1, 255))
def test_an_altered_token_is_refused(position: int, change: int) -> None:
    """A token is refused if any byte is another one: nobody moves the window to where he likes."""
    server = server_with(*HIDDEN)
    token = bytearray(first_token(server))
    token[position] ^= change
    assert is_refused(server, bytes(token))


@pytest.mark.parametrize("token", [b"", b"x", bytes(16), bytes(80), b"\x01" + HIDDEN[0]])
def test_an_invented_token_is_refused(token: bytes) -> None:
    """A token that the store has not made is refused, and one that is cut or goes on."""
    server = server_with(*HIDDEN)
    good = first_token(server)
    assert is_refused(server, token)
    assert is_refused(server, good[: len(token) // 2])
    assert is_refused(server, good + token) is bool(token)


@pytest.mark.attack("MQTT", "read names of keys out of a continuation token, or move it")
def test_a_token_of_another_pattern_user_or_store_is_refused() -> None:
    """A token is for the user and the pattern that it was made for, and for their store: another pattern would skip
    keys. Another client of the same user may go on.
    """
    server = server_with(*HIDDEN)
    token = first_token(server)
    assert is_refused(server, token, b"*")
    assert is_refused(server_with(*HIDDEN, token_key=b"k" * TOKEN_KEY_BYTES), token)
    assert isinstance(ask(server, Scan(PATTERN, token), "another"), Keys)
    server.users = {"client-id1": "alice", "other-id": "alice", "another": "bob"}
    assert is_refused(server, token)
    token = first_token(server)
    assert isinstance(ask(server, Scan(PATTERN, token), "other-id"), Keys)
    assert isinstance(ask(server, Scan(PATTERN, token), "another"), ErrorReply)


@given(st.binary(max_size=3_000), st.text(max_size=9) | st.none(), st.binary(max_size=9), st.floats(0, 1e9))
def test_a_place_comes_back(place: bytes, user: str | None, pattern: bytes, moment: float) -> None:
    """Any place is read as it was sealed, and costs a quarter more at most, or 64 bytes."""
    tokens = ScanTokens(bytes(range(TOKEN_KEY_BYTES)), None)
    token = tokens.seal(place, user, pattern, moment)
    assert tokens.open(token, user, pattern) == place
    sealed = len(place) + 12  # with its length and the moment
    assert len(token) <= 16 + sealed + max(64, sealed // 4)


# -- over a restart and a failover -------------------------------------------------------------------------------------


def test_a_listing_goes_on_after_a_restart() -> None:
    """The key is on the disk before the first token is out, and not earlier: a listing goes on in the next life, and in
    the one after that."""
    life = living(KEEP_ALL)
    for number in range(2_500):
        life.begin(Set(b"%04d" % number, b"v"))
    life.commit()
    assert not life.storage.streams[Stream.TOKENS]
    found, token = [], None
    while True:
        reply = decode_reply(life.ask(Scan(b"*", token), b"scan", f"{life.wall_ms}:0:client").payload)
        assert isinstance(reply, Keys)
        found += reply.keys
        token = reply.token
        if token is None:
            break
        assert len(life.storage.streams[Stream.TOKENS]) == 1
        life = life.next()
    assert found == [b"%04d" % number for number in range(2_500)]


def test_a_token_waits_for_the_disk() -> None:
    """The answer with the first token is not sent before its key is written."""
    life = living(KEEP_ALL)
    for number in range(1_001):
        life.begin(Set(b"%04d" % number, b"v"))
    life.commit()
    assert not life.journal.is_urgent
    life.send(Scan(b"*"), b"c", f"{life.wall_ms}:0:client")
    assert life.journal.is_urgent
    life.commit()
    life.send(Scan(b"*"), b"c", f"{life.wall_ms}:0:client")
    assert not life.journal.is_urgent


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_listing_goes_on_at_another_server(has_rows: bool) -> None:
    """A standby that takes over goes on with the tokens of the server whose log it has followed, from its beginning or
    from a snapshot.
    """
    world = ServedWorld()
    followers = [] if has_rows else [Follower(world, 0.0, has_rows=False)]
    client = world.member("c")
    for number in range(1_001):
        world.request(client, "c", Set(b"%04d" % number, b"v"))
    world.request(client, "c", Scan(b"*"))
    world.commit()
    (*_, answer) = client.messages()
    page = decode_reply(answer.payload)
    assert isinstance(page, Keys)
    (follower,) = followers or [Follower(world, 0.0)]
    follower.take_over(world.journal.timeline)
    properties = PublishProperties(response_topic="r", correlation_data=b"c")
    asked = Publish(COMMAND_TOPIC, Scan(b"*", page.token).encode(), 1, packet_id=1, properties=properties)
    (effect,) = follower.service.handle("c", asked, follower.now)
    assert decode_reply(routed(effect).payload) == Keys((b"1000",))


@pytest.mark.parametrize("fields", [(), (b"short",), ("k" * TOKEN_KEY_BYTES,), (bytes(TOKEN_KEY_BYTES), 1)])
def test_a_damaged_key_is_found(fields: tuple[object, ...]) -> None:
    """A record that is no key is an error, and not taken for one."""
    with pytest.raises(DamagedRecordError):
        ScanTokens(bytes(TOKEN_KEY_BYTES), None).absorb(batch_of(Stream.TOKENS, (b"key", fields)))
