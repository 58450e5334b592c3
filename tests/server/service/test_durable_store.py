"""The state store after a crash: keys, versions, fencing tokens, what is left of expiries, and answers given before."""

from __future__ import annotations

import pytest
from service_driver import Server, handle, version
from store_life import ASKED, WALL_MS, Life, living, refusal, value
from support.durable_broker import MemoryStorage, texts_in
from support.durable_store import ServedWorld

from statestore_client.errors import FencingTokenTooOldError
from statestore_client.mqtt.packets import Puback, Publish, PublishProperties
from statestore_client.server.broker import Route
from statestore_client.server.broker.application import Deliver, InOrder, ReportDenial
from statestore_client.server.journal import (
    Changes,
    DamagedRecordError,
    Stream,
    Subject,
    WriteBatch,
    load,
    seal,
    unseal,
)
from statestore_client.server.store import KEEP_ALL, Persistence, SiteStore
from statestore_client.server.store.durability import KeyRecord
from statestore_client.wire.commands import Command, Condition, Del, Get, KeyNotify, Scan, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.protocol import COMMAND_TOPIC, Dialect
from statestore_client.wire.replies import MISSING, OK, ErrorReply, Found


@pytest.fixture
def life() -> Life:
    return Life(MemoryStorage())


def test_keys_and_versions_survive(life: Life) -> None:
    """Keys and versions survive, with replaced values and deletions."""
    life.apply(Set(b"a", b"old"))
    version = life.apply(Set(b"a", b"\0new")).version
    life.apply(Set(b"b", b"b"))
    life.apply(Del(b"b"))
    life = life.next()
    found = life.apply(Get(b"a"))
    assert (found.reply, found.version) == (Found(b"\0new"), version)
    assert life.apply(Get(b"b")).reply is MISSING
    assert life.storage.count() == {"keys": 1, "clock": 1}


def test_whose_a_key_is_survives(life: Life) -> None:
    """A key is its last writer's after the restart, too; records of clients without a user are as they always were."""
    life.apply(Set(b"a", b"1"), user="ann")
    life.apply(Set(b"b", b"1"), user="ann")
    life.apply(Set(b"b", b"12"), user="ben")
    life.apply(Set(b"c", b"1"))
    before = [share._of for share in life.store.shares]
    assert before[0] == {"ann": 1, "ben": 1, None: 1}
    life = life.next()
    assert [share._of for share in life.store.shares] == before
    life.apply(Set(b"a", b"2"))
    life.apply(Del(b"b"), user="ann")
    assert life.next().store.shares[0]._of == {None: 2}
    timeline = life.journal.timeline
    assert [len(fields) for _, fields in load(life.storage, Stream.KEYS)] == [4, 4]
    with pytest.raises(ValueError, match="unpack"):
        KeyRecord.read((b"", (1, 0, "s"), None, None, "ann", "more"), timeline)


def test_fences_survive(life: Life) -> None:
    """After the restart an older token is refused as before."""
    new, old = HlcTimestamp(WALL_MS, 7, "b"), HlcTimestamp(WALL_MS, 6, "a")
    life.apply(Set(b"k", b"1"), new)
    life = life.next()
    refused = life.apply(Set(b"k", b"2"), old).reply
    assert isinstance(refused, ErrorReply)
    assert isinstance(refused.error, FencingTokenTooOldError)
    assert life.apply(Set(b"k", b"3"), new).reply is OK


def test_expiry_goes_on(life: Life) -> None:
    """A key has what was left of its expiry, and one whose time came while the server was away is gone before it is
    read."""
    life.apply(Set(b"short", b"", expiry_ms=10_000))
    life.apply(Set(b"long", b"", expiry_ms=60_000))
    life = life.next(after_s=40)
    assert life.apply(Get(b"short")).reply is MISSING
    life.store.tick(life.now)
    deadline = life.store.next_deadline()
    assert deadline == pytest.approx(life.now.monotonic + 20)
    life.advance(20)
    life.store.tick(life.now)
    life.commit()
    assert life.storage.count() == {"clock": 1}


@pytest.mark.parametrize("step_s", [-86_400.0, -30.0, 0.0, 3_600.0])
def test_setting_the_wall_clock_moves_no_lease_over_a_restart(life: Life, step_s: float) -> None:
    """A lock of 6 s, held for 2, on a server that is away for 1, is free after 3 more, however the wall clock is
    set."""
    life.apply(Set(b"lock", b"me", Condition.NEX, expiry_ms=6_000))
    life.advance(2)
    life = life.next(after_s=1, step_s=step_s)
    life.advance(2.999)
    assert life.apply(Get(b"lock")).reply == Found(b"me")
    life.advance(0.001)
    assert life.apply(Get(b"lock")).reply is MISSING


def test_a_machine_whose_clocks_were_put_back_to_a_snapshot(life: Life) -> None:
    """When the monotonic clock says less than what was stored, as after a snapshot, no time away counts."""
    life.advance(1_000)
    life.apply(Set(b"lock", b"me", expiry_ms=6_000))
    life = life.next(after_s=-900)
    assert life.store.next_deadline() == pytest.approx(life.monotonic + 6)


def test_deadlines_do_not_wander_from_restart_to_restart(life: Life) -> None:
    """A thousand restarts, a third of a millisecond apart, do not move a deadline by their rounding."""
    life.advance(0.0004)
    life.apply(Set(b"k", b"", expiry_ms=1_000_000))
    deadline = life.monotonic + 1_000
    for _ in range(1_000):
        life = life.next(after_s=1 / 3_000)
        life.commit()
    assert life.store.next_deadline() == pytest.approx(deadline, abs=0.002)
    assert (life.store.next_deadline() or 0.0) >= deadline


def test_a_request_that_comes_again_after_the_restart(life: Life) -> None:
    """A request that is repeated after the restart gets its first answer and is not executed again; another one is."""
    command, stamp = Set(b"lock", b"me", Condition.NX), f"{WALL_MS}:0:client"
    first = life.ask(command, b"c1", stamp)
    life = life.next(after_s=100)
    again = life.ask(command, b"c1", stamp)
    assert (first.payload, again.payload) == (b"+OK\r\n", b"+OK\r\n")
    assert again.properties.user_properties == first.properties.user_properties
    assert life.ask(Set(b"lock", b"you", Condition.NX), b"c1", stamp).payload == b":-1\r\n"
    life = life.next(after_s=400)
    assert life.ask(command, b"c1", stamp).payload == b":-1\r\n"


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0])
def test_answers_are_remembered_by_the_same_clock(life: Life, step_s: float) -> None:
    """Setting the wall clock does not change the five minutes for which an answer is remembered."""
    command, stamp = Set(b"lock", b"me", Condition.NX), f"{WALL_MS}:0:client"
    life.ask(command, b"c1", stamp)
    life = life.next(after_s=100, step_s=step_s)
    life.wall_ms -= round(step_s * 1000)  # set right again, and the request is not from the future
    life.advance(199.9)
    assert life.ask(command, b"c1", stamp).payload == b"+OK\r\n"
    life.advance(0.2)
    assert life.ask(command, b"c1", stamp).payload == b":-1\r\n"


@pytest.mark.parametrize(
    ("stream", "subject", "fields"),
    [
        (Stream.KEYS, b"k", (b"v",)),
        (Stream.KEYS, b"k", (b"v", (1, 2), None, None)),
        (Stream.CLOCK, b"", (1,)),
        (Stream.CLOCK, b"time", (1,)),
        (Stream.CLOCK, b"time", ("then", 1.0, 1, 1)),
        (Stream.RESPONSES, b"\xc1", (1, b"", None, 1)),
        (Stream.RESPONSES, b"\x92\xa1c\xc4\x01d", (1, b"")),
        (Stream.RESPONSES, b"\x92\xa1c\xc4\x01d", (1, b"", "no version", 1)),
        (Stream.RESPONSES, b"\x92\xa1c\xc4\x01d", (1, b"", (1, 2), 1)),
    ],
)
def test_damaged_records(life: Life, stream: Stream, subject: Subject, fields: tuple[object, ...]) -> None:
    """All damaged records raise one kind of error."""
    life.storage.append(
        WriteBatch((Changes(stream, ((subject, seal(stream, subject, fields)),), ()),)), lambda _error: None
    )
    with pytest.raises(DamagedRecordError):
        life.next()


# -- which answers are written down ------------------------------------------------------------------------------------

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


# -- keys of other sites in a durable server ---------------------------------------------------------------------------

KEY = b"sites/oslo/k"
TOKEN = HlcTimestamp(WALL_MS, 6, "a")


class SiteLife(Life):
    """Of a server with a bridge."""

    def __init__(self, storage: MemoryStorage, after_s: float = 0.0, persistence: Persistence = KEEP_ALL) -> None:
        at = WALL_MS + round(after_s * 1000)
        super().__init__(storage, wall_ms=at, monotonic=50.0 + after_s, persistence=persistence, is_site=True)

    @property
    def site_store(self) -> SiteStore:
        assert isinstance(self.store, SiteStore)
        return self.store


def test_an_import_is_not_there_after_a_restart() -> None:
    """Its version was: no later one is smaller."""
    first = SiteLife(MemoryStorage())
    assert first.site_store.put_import(KEY, b"1", first.now)
    entry = first.site_store.entry(KEY, first.now)
    assert entry is not None
    first.commit()
    second = SiteLife(first.storage, -60.0)
    assert value(second, KEY) is None
    later = second.apply(Set(b"mine", b"x")).version
    assert later is not None
    assert later > entry.version


@pytest.mark.parametrize("token", [None, TOKEN])
def test_what_a_client_had_set_there_does_not_come_back(token: HlcTimestamp | None) -> None:
    """The import has replaced it on the disk, too, with its mark and its expiry."""
    before = Life(MemoryStorage())
    before.apply(Set(KEY, b"old", expiry_ms=60_000), token)
    site = SiteLife(before.storage, 1.0)
    assert value(site, KEY) == b"old"
    assert site.site_store.put_import(KEY, b"new", site.now)
    site.commit()
    after = Life(site.storage, monotonic=60.0, wall_ms=WALL_MS + 10_000)
    assert value(after, KEY) is None
    assert after.store.next_deadline() is None
    assert refusal(after.apply(Set(KEY, b"anyone")).reply) is None


def test_a_mark_that_a_client_had_left_there_ends() -> None:
    """A value that was forgotten has left its mark: after an import, and a restart, nobody needs its token."""
    before = Life(MemoryStorage(), persistence=ASKED)
    before.apply(Set(KEY, b"old"), TOKEN)
    site = SiteLife(before.storage, 1.0, ASKED)
    assert site.site_store.put_import(KEY, b"new", site.now)
    assert site.store.next_deadline() is None
    site.site_store.drop_import(KEY, site.now)
    site.apply(Set(b"other", b"x", persist=True))
    after = Life(site.storage, monotonic=60.0, wall_ms=WALL_MS + 10_000, persistence=ASKED)
    assert refusal(after.apply(Set(KEY, b"anyone")).reply) is None


def test_what_observers_are_told_of_imports_is_not_written_down() -> None:
    """It may be lost with the server, as the import is. What they are told of other keys may not."""
    life = SiteLife(MemoryStorage())
    for key in (KEY, b"mine"):
        life.apply(KeyNotify(key))
    life.site_store.put_import(KEY, b"1", life.now)
    life.site_store.drop_import(KEY, life.now)
    (one, other) = life.service.announce(life.site_store.take_changes())
    told = [effect for series in (one, other) if isinstance(series, InOrder) for effect in series.effects]
    assert [isinstance(effect, Deliver) and effect.is_fleeting for effect in told] == [True, True]
    (series,) = life.service.announce(life.apply(Set(b"mine", b"x")).changes)
    assert isinstance(series, InOrder)
    assert [isinstance(effect, Deliver) and effect.is_fleeting for effect in series.effects] == [False]


@pytest.mark.parametrize("command", [Set(KEY, b"x"), Del(KEY), VDel(KEY, b"1")])
def test_clients_change_no_import(command: Command) -> None:
    """The answer says so, and the import is as it was."""
    life = SiteLife(MemoryStorage())
    life.site_store.put_import(KEY, b"1", life.now)
    properties = PublishProperties(
        response_topic="clients/client/r", correlation_data=b"c", user_properties=(("__ts", f"{WALL_MS}:0:client"),)
    )
    request = Publish(COMMAND_TOPIC, command.encode(), 1, packet_id=1, properties=properties)
    answer, denial = life.service.handle("client", request, life.now)
    assert isinstance(answer, Route)
    assert answer.message.payload == b"-ERR not authorized\r\n"
    assert isinstance(denial, ReportDenial)
    assert (denial.action, denial.what) == ("write", "sites/oslo/k")
    assert value(life, KEY) == b"1"
