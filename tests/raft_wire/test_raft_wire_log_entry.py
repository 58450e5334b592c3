"""Log entries, lists of peers and request ids: the bytes of the published document and of real peers; URLs of peers."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.request_id_factory import new_request_id
from raft_client.wire.configuration import (
    ConfigChange,
    Peer,
    decode_config,
    encode_config,
    is_ipc_url,
    is_peer_url,
    is_tcp_url,
)
from raft_client.wire.log_entry import EntryKind, LogEntry, decode_entries
from raft_client.wire.request_id import ZERO_REQUEST_ID, IdFreshness, RequestId, RequestIdSource

# -- entries ----------------------------------------------------------------------------------------------------------

#: ØMQ Raft protocol ("zmq frame body as a log entry"), and facts §4: id, kind, term, data.
ENTRIES = [
    ("5956dc8826f27e10dcccab20002a000000000000666f6f", "5956dc8826f27e10dcccab20", EntryKind.STATE, 42, b"foo"),
    ("000000000000000000000000022b000000000000c0", "00" * 12, EntryKind.CHECKPOINT, 43, b"\xc0"),
    ("00" * 12 + "02ffffffffffff1fdeadbaca", "00" * 12, EntryKind.CHECKPOINT, 2**53 - 1, b"\xde\xad\xba\xca"),
    (
        "1112131415161718191a1b1c02ffffffffffff1fc0",
        "1112131415161718191a1b1c",
        EntryKind.CHECKPOINT,
        2**53 - 1,
        b"\xc0",
    ),
    ("1112131415161718191a1b1c020f010000000000c0", "1112131415161718191a1b1c", EntryKind.CHECKPOINT, 271, b"\xc0"),
]


@pytest.mark.parametrize(("text", "request_id", "kind", "term", "data"), ENTRIES)
def test_the_published_entries_are_read_and_written(
    text: str, request_id: str, kind: EntryKind, term: int, data: bytes
) -> None:
    """An entry has the bytes of the document, in both directions."""
    frame = bytes.fromhex(text)
    entry = LogEntry.from_frame(frame, 7)
    assert (str(entry.request_id), entry.kind, entry.term, entry.data) == (request_id, kind, term, data)
    assert (entry.index, entry.size, bytes(entry.data_view), entry.is_state) == (7, len(frame), data, kind == 0)
    made = LogEntry.of(data, term=term, kind=kind, request_id=RequestId.parse(request_id), index=7)
    assert made == entry
    assert made.encode() == frame
    assert pickle.loads(pickle.dumps(entry)) == entry  # noqa: S301 - our own bytes


def test_the_term_has_seven_bytes() -> None:
    """Each byte of a term counts, as in the Node library's reader vector (the top one is changed: a term has 53
    bits)."""
    frame = bytes(12) + bytes([1]) + bytes([7, 6, 5, 4, 3, 2, 1]) + b"x"
    assert LogEntry.from_frame(frame).term == 7 + 6 * 2**8 + 5 * 2**16 + 4 * 2**24 + 3 * 2**32 + 2 * 2**40 + 2**48


@pytest.mark.parametrize(
    ("frame", "offset"),
    [
        (b"", None),
        (bytes(19), None),
        (bytes(12) + b"\x03" + bytes(7) + b"x", 12),
        (bytes(12) + b"\x4d" + bytes(7), 12),  # the Node library reads a kind of 77; nobody writes one
        (bytes(19) + b"\x20x", 13),
    ],
)
def test_broken_entries_are_refused(frame: bytes, offset: int | None) -> None:
    """A short header, an unknown kind and a term of more than 53 bits break the protocol; the error says where."""
    with pytest.raises(ProtocolError) as caught:
        LogEntry.from_frame(frame)
    assert caught.value.offset == offset
    with pytest.raises(ProtocolError):
        decode_entries([bytes(20), frame], 1)


@pytest.mark.parametrize(("term", "data"), [(-1, b"x"), (2**53, b"x"), (1, b"")])
def test_impossible_entries_are_not_made(term: int, data: bytes) -> None:
    """An entry without data is not made, because it would end the process of a Node peer."""
    with pytest.raises(InvalidArgumentError):
        LogEntry.of(data, term=term)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_frames_are_entries_or_a_protocol_error(frames: list[bytes]) -> None:
    """Any frames are read as entries whose fields can all be read, or refused with a ProtocolError."""
    with suppress(ProtocolError):
        entries = decode_entries(frames, 5)
        assert [entry.index for entry in entries] == list(range(5, 5 + len(frames)))
        for entry, frame in zip(entries, frames, strict=True):
            again = LogEntry.of(entry.data or b"-", term=entry.term, kind=entry.kind, request_id=entry.request_id)
            assert again.frame[:20] == frame[:20]


# -- peers ------------------------------------------------------------------------------------------------------------


def test_a_list_of_peers_has_the_node_librarys_bytes() -> None:
    """A final configuration is a plain array of pairs (facts §4)."""
    data = bytes.fromhex("9192a131b47463703a2f2f3132372e302e302e313a38303437")
    change = ConfigChange((Peer("1", "tcp://127.0.0.1:8047"),))
    assert decode_config(data) == change
    assert not change.is_transition
    assert encode_config(change) == data


def test_a_transition_holds_both_lists() -> None:
    """A transitional configuration is a map with the properties of the document."""
    data = b"\x82\xa3old\x91\x92\xa11\xa5tcp:1\xa3new\x92\x92\xa11\xa5tcp:1\x92\xa12\xa5tcp:2"
    change = ConfigChange((Peer("1", "tcp:1"), Peer("2", "tcp:2")), old=(Peer("1", "tcp:1"),))
    assert decode_config(data) == change
    assert change.is_transition
    assert encode_config(change) == data


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc0", b"\x01", b"\x91\x01", b"\x91\x91\xa11", b"\x91\x92\xa11\x01", b"\x91\x92\xa0\xa11", b"\x80",
        b"\x81\xa3old\x90", b"\x82\xa3old\x90\xa3new\xc0", b"\x92\x92\xa11\xa12\x92\xa11\xa13",
        b"\x91\x93\xa11\xa12\xa13",
    ],
)  # fmt: skip
def test_broken_lists_of_peers_are_refused(data: bytes) -> None:
    """A list of peers that is not pairs of texts with distinct ids breaks the protocol."""
    with pytest.raises(ProtocolError):
        decode_config(data)


@pytest.mark.parametrize(("peer_id", "url"), [("", "tcp:1"), ("1", ""), (1, "tcp:1"), ("1", None), ("\ud800", "x")])
def test_peers_have_an_id_and_a_url(peer_id: str, url: str) -> None:
    """A peer with an id or URL that no message could carry is not made."""
    with pytest.raises(InvalidArgumentError):
        Peer(peer_id, url)


# -- request ids -------------------------------------------------------------------------------------------------------


def test_the_published_request_id_is_read() -> None:
    """An id is read from hex and from Base64, and knows when it was made (facts §4)."""
    request_id = RequestId.parse("5816b41e26f27e0494708988")
    assert request_id.seconds == 1477882910
    assert RequestId.parse("WBa0HibyfgSUcImI") == request_id
    assert str(request_id) == "5816b41e26f27e0494708988"
    assert RequestId(bytes(range(1, 13))) == RequestId.parse("0102030405060708090a0b0c")
    assert ZERO_REQUEST_ID.seconds == 0


@pytest.mark.parametrize("text", ["", "foo", "0" * 23, "0" * 25, "zz" * 12, "WBa0HibyfgSUcIm=", "WBa0HibyfgSUcIm\n"])
def test_other_texts_are_no_request_ids(text: str) -> None:
    """Only 24 hex digits or 16 characters of Base64 are an id."""
    with pytest.raises(InvalidArgumentError):
        RequestId.parse(text)


@pytest.mark.parametrize("raw", [b"", bytes(10), bytes(16), "0" * 12])
def test_other_lengths_are_no_request_ids(raw: bytes) -> None:
    """A peer ignores updates whose id has not exactly 12 bytes, so such an id is not made."""
    with pytest.raises(InvalidArgumentError):
        RequestId(raw)


NOW = 1_700_000_000
HOUR = 3600


@pytest.mark.parametrize(
    ("made_at", "freshness"),
    [
        (0, IdFreshness.EXPIRED),
        (NOW, IdFreshness.FRESH),
        (NOW + 15 * 60 + 2, IdFreshness.FUTURE),
        (NOW - 8 * HOUR + 15 * 60, IdFreshness.EXPIRED),
        (NOW - 8 * HOUR + 15 * 60 + 2, IdFreshness.FRESH),
    ],
)
def test_freshness_is_what_a_peer_makes_of_it(made_at: int, freshness: IdFreshness) -> None:
    """The freshness of ids follows the Node library's vectors: eight hours less a quarter back, a quarter ahead (facts
    §4)."""
    request_id = RequestId(made_at.to_bytes(4, "big") + bytes(8))
    assert request_id.freshness(NOW) is freshness


def test_ids_are_laid_out_as_the_document_says() -> None:
    """Seconds, machine, process id and counter stand in their places, big endian, and the counter wraps at 24 bits."""
    source = RequestIdSource(b"\xaa\xbb\xcc", 0x12345, 0xFFFFFF)
    assert str(source.next(0x5956DC88)) == "5956dc88aabbcc2345ffffff"
    assert str(source.next(0x5956DC88)) == "5956dc88aabbcc2345000000"
    with pytest.raises(InvalidArgumentError):
        source.next(2**32)
    with pytest.raises(InvalidArgumentError):
        RequestIdSource(b"\xaa", 1, 1)


@given(st.binary(max_size=20), st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=50), st.integers(0, 2**32 - 1))
def test_derived_ids_are_the_same_everywhere_and_differ_within_a_namespace(
    namespace: bytes, numbers: list[int], seconds: int
) -> None:
    """Repeated work derives the ids that it had, and different work in one namespace never shares one."""
    ids = [RequestId.derive(namespace, n, seconds=seconds) for n in numbers]
    assert ids == [RequestId.derive(namespace, n, seconds=seconds) for n in numbers]
    assert len(set(ids)) == len(numbers)
    assert {request_id.seconds for request_id in ids} <= {seconds}


def test_namespaces_do_not_share_ids() -> None:
    """Ten thousand ids of a hundred pieces of work are all different; text and bytes name the same work."""
    ids = {RequestId.derive(f"job/{task}", n, seconds=NOW) for task in range(100) for n in range(100)}
    assert len(ids) == 10_000
    assert RequestId.derive("job/é", 1, seconds=NOW) == RequestId.derive("job/é".encode(), 1, seconds=NOW)


@pytest.mark.parametrize(("n", "seconds"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**32)])
def test_derived_ids_need_numbers_in_range(n: int, seconds: int) -> None:
    """A number that has no place in the twelve bytes of an id is refused."""
    with pytest.raises(InvalidArgumentError):
        RequestId.derive("x", n, seconds=seconds)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # pytest-xdist has threads
def test_ids_of_this_process_differ_also_after_a_fork() -> None:
    """A forked child makes other request ids than its parent, although it inherited the counter."""
    receive, send = os.pipe()
    before = new_request_id()
    if not (pid := os.fork()):
        os.write(send, new_request_id().raw + new_request_id().raw)
        os._exit(0)
    os.waitpid(pid, 0)
    child = os.read(receive, 24)
    os.close(receive)
    os.close(send)
    ids = [before, new_request_id(), RequestId(child[:12]), RequestId(child[12:])]
    assert len({request_id.raw[4:] for request_id in ids}) == 4
    assert ids[2].raw[7:9] == (pid & 0xFFFF).to_bytes(2, "big")


# -- URLs of peers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["a", "a-", "a._-", "9", "127.0.0.1", "[::1]", "[fe80::1%eth0.1_a-b]"])
def test_a_url_of_a_peer_can_be_connected_to(host: str) -> None:
    """libzmq takes what is a URL of a peer; whether anybody is there is another question."""
    assert is_peer_url(f"tcp://{host}:80")
    assert is_connectable(f"tcp://{host}:80")


@pytest.mark.parametrize("host", ["-", "_a", ".a", "", "a b", "*", "@", "é", "[fe80::1%a b]"])
def test_what_cannot_be_connected_to_is_no_url_of_a_peer(host: str) -> None:
    """A name that libzmq refuses is refused where it is given, not when a peer wants to connect to it."""
    assert not is_peer_url(f"tcp://{host}:80")


@pytest.mark.parametrize("path", ["/a", "/tmp/raft/1.sock", "/é", "/" + "a" * 102, "/" + "é" * 51])
def test_a_unix_socket_is_a_url_for_clients(path: str) -> None:
    """An absolute path that fits is a URL that libzmq connects to, and none of a peer among machines."""
    assert is_peer_url(f"ipc://{path}")
    assert is_ipc_url(f"ipc://{path}")
    assert not is_tcp_url(f"ipc://{path}")
    assert is_connectable(f"ipc://{path}")


@pytest.mark.parametrize(
    "path", ["", "a", "/", "*", "@a", "/a b", "/a,b", "/a=b", "/a\0", "/\ud800", "/" + "a" * 103, "/" + "é" * 52]
)
def test_other_paths_are_no_urls(path: str) -> None:
    """What libzmq refuses, what macOS has no room for, and what settings could not write is refused."""
    assert not is_peer_url(f"ipc://{path}")


def is_connectable(url: str) -> bool:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        try:
            dealer.connect(url)
        except zmq.ZMQError:
            return False
    return True
