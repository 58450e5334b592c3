"""The sockets of a peer, where something cannot be had."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest
import zmq
from support.waiting import eventually

from raft_client.server.runtime import sockets as peer_sockets
from raft_client.server.runtime.sockets import LongAnswers, PeerSockets


class Sockets(PeerSockets):
    """``dropped`` are the reasons why messages were."""

    def __init__(self) -> None:
        self.dropped: list[str] = []
        super().__init__(lambda _descriptor: None, lambda _descriptor: None, self.dropped.append)


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = Sockets()
    yield made
    made.close()


def test_sockets_are_given_back_when_one_of_them_could_not_connect() -> None:
    """A peer that fails because libzmq refuses a URL still ends: closing does not wait for a socket half made."""
    sockets = Sockets()
    sockets.bind("tcp://127.0.0.1:*", None)
    with pytest.raises(zmq.ZMQError) as refused:
        sockets.connect("2", "tcp://-:80")
    closing = threading.Thread(target=sockets.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive(), f"still waiting after {refused.value}"


def test_a_message_of_too_many_frames_is_dropped_in_parts(sockets: Sockets) -> None:
    """A message of 200,000 frames takes neither all of a turn nor any memory of this peer; what follows it comes."""
    url, _ = sockets.bind("tcp://127.0.0.1:*", None)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.connect(url)
        client.send_multipart([b"x"] * 65_000)
        client.send_multipart([b"x"] * 200_000)
        client.send_multipart([b"after"])
        sizes: list[int] = []
        turns = 0
        while len(sizes) < 2:
            eventually(lambda: sockets.next_look(0.0) == 0.0)
            sizes += [len(message) for message in sockets.receive(1_000, 0.0).requests]
            turns += 1
    assert sizes == [65_001, 2]  # with the route
    assert sockets.dropped == ["too many frames"]
    assert turns > 4


def test_a_client_that_floods_is_read_at_a_pace(sockets: Sockets) -> None:
    """Of one client 500 messages are taken at once, and 50 in a millisecond from then on. What others send waits for a
    millisecond at most."""
    url, _ = sockets.bind("tcp://127.0.0.1:*", None)

    def taken(now: float) -> list[bytes]:
        """What is taken while time stands still."""
        messages: list[bytes] = []
        while sockets.next_look(now) == now:
            messages += [message[1] for message in sockets.receive(200, now).requests]
        return messages

    def pauses(now: float) -> bool:
        return now < sockets.next_look(now) < now + 0.0011

    with zmq.Context() as context, context.socket(zmq.DEALER) as flood, context.socket(zmq.DEALER) as other:
        flood.linger = other.linger = 0
        flood.connect(url)
        other.connect(url)
        for _ in range(1_000):
            flood.send(b"flood")
        first: list[bytes] = []
        eventually(lambda: first.extend(taken(1.0)) or pauses(1.0), "a pause")
        assert 500 <= len(first) <= 501
        assert taken(1.0) == []
        second: list[bytes] = []
        eventually(lambda: second.extend(taken(1.002)) or pauses(1.002), "the next one")
        assert 99 <= len(second) <= 101  # of two milliseconds
        other.send(b"other")
        looks = (1.004 + look / 500 for look in count())
        eventually(lambda: b"other" in taken(next(looks)), "what the other one says")


def test_a_frame_too_long_ends_the_connection_that_it_came_through(sockets: Sockets) -> None:
    """Nobody at the address of another peer makes this one keep a frame of any length; nor does a subscriber."""
    _, publisher_url = sockets.bind("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    assert publisher_url is not None
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other, context.socket(zmq.SUB) as subscriber:
        other.linger = subscriber.linger = 0
        port = other.bind_to_random_port("tcp://127.0.0.1")
        sockets.connect("2", f"tcp://127.0.0.1:{port}")
        dealer = sockets.dealers["2"]
        eventually(lambda: dealer.send([b"hello"]))
        route = other.recv_multipart()[0]
        other.send_multipart([route, bytes(12 * 1024 * 1024)])
        turns: list[bool] = []
        eventually(lambda: turns.extend(began for _, began in sockets.receive(1, 0.0).connections) or False in turns)
        monitor = subscriber.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        subscriber.subscribe(bytes(100_000))
        subscriber.connect(publisher_url)
        assert monitor.poll(20_000)
        subscriber.disable_monitor()
        monitor.close(linger=0)


def test_long_answers_to_a_client_that_reads_nothing_are_dropped(sockets: Sockets) -> None:
    """About 32 MiB wait for it, in libzmq and in the kernel, and not a thousand answers; others have theirs, and it has
    the next ones when it reads."""
    url, _ = sockets.bind("tcp://127.0.0.1:*", None)
    answer = bytes(1024 * 1024)
    with zmq.Context() as context, context.socket(zmq.DEALER) as sleeper, context.socket(zmq.DEALER) as other:
        sleeper.rcvhwm = 1
        routes: dict[bytes, bytes] = {}
        for name, client in ((b"sleeper", sleeper), (b"other", other)):
            client.linger = 0
            client.connect(url)
            client.send(name)
        eventually(
            lambda: routes.update((each[1], each[0]) for each in sockets.receive(9, 0.0).requests) or len(routes) == 2
        )
        taken = sum(sockets.answer([routes[b"sleeper"], answer]) for _ in range(200))
        assert 20 <= taken < 100
        assert sockets.answer([routes[b"other"], answer])
        assert other.recv() == answer
        for _ in range(taken):
            assert sleeper.recv() == answer
        eventually(lambda: sockets.answer([routes[b"sleeper"], answer]))
        assert sleeper.recv() == answer


def test_broadcasts_to_a_subscriber_that_reads_nothing_are_dropped(sockets: Sockets) -> None:
    """Some 128 of them wait for it, and what the kernel holds; the next one comes when it has read those."""
    _, publisher_url = sockets.bind("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    assert publisher_url is not None
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        subscriber.rcvhwm = 1
        subscriber.subscribe(b"")
        subscriber.connect(publisher_url)
        eventually(lambda: sockets.publish([b"hello"]) or subscriber.poll(10))
        for _ in range(1_000):
            sockets.publish([bytes(256 * 1024)])
        sizes: list[int] = []
        while subscriber.poll(500):
            sizes.append(len(subscriber.recv()))
        assert 100 <= len([size for size in sizes if size > 5]) < 500
        sockets.publish([b"after"])
        assert subscriber.recv() == b"after"


def test_broadcasts_are_found_at_the_host_that_clients_know(sockets: Sockets) -> None:
    """All addresses are none that a client can connect to: it is told the public host, and the port."""
    url, published = sockets.bind("tcp://0.0.0.0:*", "tcp://0.0.0.0:*", "raft-1.example")
    assert url.startswith("tcp://0.0.0.0:")
    assert published is not None
    host, _, port = published.rpartition(":")
    assert (host, port != url.rpartition(":")[2]) == ("tcp://raft-1.example", True)


def test_long_answers_may_take_all_of_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that just fits into what may wait for one connection, and for all, is sent; a byte more is dropped."""
    monkeypatch.setattr(peer_sockets, "_MOST_BYTES_OF_ONE", 100)
    monkeypatch.setattr(peer_sockets, "_MOST_BYTES", 100)
    answers = LongAnswers()
    answers._bytes, answers._total = {b"a": 40}, 40
    assert answers._has_room(b"a", 60)
    assert not answers._has_room(b"a", 61)
    assert answers._has_room(b"b", 160)
    assert not answers._has_room(b"b", 161)
