"""Which answers are written down: those to writes, remembered and on their way; and what of a version is."""

from __future__ import annotations

import pytest
from service_driver import Server, handle, version
from store_life import WALL_MS, Life, living
from support.durable_broker import texts_in
from support.durable_store import ServedWorld

from statestore_client.mqtt.packets import Puback
from statestore_client.server.broker import Route
from statestore_client.server.journal import Changes, Stream, WriteBatch, seal, unseal
from statestore_client.server.store import KEEP_ALL
from statestore_client.wire.commands import Command, Condition, Del, Get, KeyNotify, Scan, Set, VDel
from statestore_client.wire.dialect import Dialect

READS = [Get(b"k"), Get(b"missing"), Get(b""), Scan(b"*"), KeyNotify(b"k"), KeyNotify(b"k", stop=True)]


@pytest.mark.parametrize("command", READS, ids=repr)
def test_an_answer_to_a_read_is_not_written_down(command: Command) -> None:
    """A read on a session that outlives its connection writes nothing, and is answered without the disk."""
    world = ServedWorld()
    client = world.member("c")
    world.request(client, "c", Set(b"k", b"a large value"))
    for answer in client.messages():
        client.send(Puback(answer.packet_id))
    world.commit()
    batches = len(world.storage.batches)
    world.request(client, "c", command)
    assert not world.journal
    assert len(client.messages()) == 1
    assert len(world.storage.batches) == batches


@pytest.mark.parametrize("command", [Set(b"k", b"2"), Set(b"k", b"2", Condition.NX), Del(b"k"), VDel(b"k", b"1")])
def test_an_answer_to_a_write_comes_after_the_restart(command: Command) -> None:
    """An answer to a write that its client has not acknowledged comes after a restart; one to a read does not."""
    world = ServedWorld()
    client = world.member("c")
    world.request(client, "c", Set(b"k", b"1"))
    for answer in client.messages():
        client.send(Puback(answer.packet_id))
    world.request(client, "c", Get(b"k"))
    world.request(client, "c", command)
    read, written = texts_in(client.received())
    assert read == b"$1\r\n1\r\n"
    world.crash()
    _, packets = world.back("c")
    assert texts_in(packets) == [written]


def test_a_read_waits_for_the_write_that_it_saw() -> None:
    """A value that a crash would undo is read by nobody: the answer goes out when the value is on the disk."""
    world = ServedWorld()
    writer, reader = world.member("w"), world.member("r")
    world.work()
    world.request(writer, "w", Set(b"k", b"new"))
    world.request(reader, "r", Get(b"k"))
    assert world.journal.is_urgent
    assert not reader.connection.outbox
    world.crash()
    assert not reader.connection.outbox


def test_a_version_is_written_as_numbers() -> None:
    """A remembered answer holds the version and not its text, which the dialect of the server makes."""
    life = living(KEEP_ALL)
    life.ask(Set(b"k", b"v"), b"c", f"{WALL_MS}:0:client")
    ((subject, data),) = life.storage.streams[Stream.RESPONSES].items()
    assert unseal(Stream.RESPONSES, subject, data)[2] == (WALL_MS, 1, "StateStore")


def test_a_repeated_request_is_answered_in_the_dialect_of_now() -> None:
    """After a restart with the other dialect the same version is written as that dialect writes it."""
    world = ServedWorld(dialect=Dialect.DOCUMENT)
    client = world.member("c")
    world.request(client, "c", Set(b"k", b"v"), correlation=b"same")
    (first,) = client.messages()
    client.send(Puback(first.packet_id))
    stamp = int(world.monotonic * 1000)
    world.commit()
    world.dialect = Dialect.SERVICE
    world.crash()
    client, _ = world.back("c")
    world.request(client, "c", Set(b"k", b"v"), correlation=b"same")
    (second,) = client.messages()
    assert (version(first), version(second)) == (f"{stamp}:1:StateStore", f"{stamp:015}:00001:StateStore")
    assert world.service.counters["redelivered"] == 1


@pytest.mark.parametrize("text", [f"{WALL_MS:015}:00007:StateStore", f"{WALL_MS}:7:StateStore"])
def test_answers_of_an_earlier_release_are_read(text: str) -> None:
    """A remembered answer that holds the text of the version, as version 0.1 wrote it, is repeated as it was."""
    life = living(KEEP_ALL)
    first = life.ask(Set(b"k", b"v", Condition.NX), b"c", f"{WALL_MS}:0:client")
    ((subject, data),) = life.storage.streams[Stream.RESPONSES].items()
    fingerprint, payload, _, stored_ms = unseal(Stream.RESPONSES, subject, data)
    old = seal(Stream.RESPONSES, subject, (fingerprint, payload, text, stored_ms))
    life.storage.append(WriteBatch((Changes(Stream.RESPONSES, ((subject, old),), ()),)), lambda _error: None)
    life = life.next()
    again = life.ask(Set(b"k", b"v", Condition.NX), b"c", f"{WALL_MS}:0:client")
    assert (again.payload, version(again)) == (first.payload, f"{WALL_MS:015}:00007:StateStore")


def test_a_request_that_cannot_be_read_writes_nothing() -> None:
    """A refusal of what is no command, or no request, changes nothing, and is not written down."""
    assert all(isinstance(effect, Route) and effect.is_fleeting for effect in handle(Server(), 0))
    assert all(isinstance(effect, Route) and effect.is_fleeting for effect in handle(Server(Dialect.DOCUMENT), 0))
    life = Life(living(KEEP_ALL).storage)
    route = life.send(_Nonsense(), b"c", f"{WALL_MS}:0:client")
    assert route.is_fleeting
    assert not life.storage.streams[Stream.RESPONSES]


class _Nonsense(Get):
    def __init__(self) -> None:
        super().__init__(b"k")

    def encode(self) -> bytes:
        return b"*1\r\n$4\r\nWHAT\r\n"
