"""A full queue: the client that does not read bears it, hears of it, and stops nobody. When the server is full as a
whole, the queue that holds most gives room.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.broker_driver import Client, Desk, World
from support.durable_broker import DAY, DurableWorld

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    Puback,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    ReasonCode,
    Will,
)
from statestore_client.server.broker import BrokerLimits, Deliver, Effect, Route
from statestore_client.server.journal import Stream

DROPS = ("drop-new", "drop-old", "end-session")


@pytest.fixture(name="make", params=[World, DurableWorld], ids=["in memory", "durable"])
def made_world(request: pytest.FixtureRequest) -> Any:
    """A world in memory, and one with a journal."""
    return request.param


def away(world: World, client_id: str, *filters: str, qos: int = 1) -> None:
    """A client that subscribed and left."""
    client = world.client(client_id, session_expiry=DAY)
    client.subscribe(*(filters or ("t",)), qos=qos)
    client.lose()


def back(world: World, client_id: str, **connect: Any) -> tuple[str | None, list[bytes]]:
    """What CONNACK tells of losses, and the messages that waited, each acknowledged at once."""
    client = Client(world)
    properties = ConnectProperties(session_expiry=DAY)
    client.send(Connect(client_id, properties=properties, **{"clean_start": False, **connect}))
    connack, *packets = client.received()
    assert isinstance(connack, Connack)
    texts: list[bytes] = []
    while packets:
        for packet in packets:
            if isinstance(packet, Publish):
                texts.append(packet.payload)
                client.send(Pubrec(packet.packet_id) if packet.qos == 2 else Puback(packet.packet_id))
        packets = client.received()
    client.lose()
    return dict(connack.properties.user_properties).get("dropped-messages"), texts


def codes(sender: Client) -> list[int]:
    return [packet.reason_code for packet in sender.received() if isinstance(packet, (Puback, Pubrec))]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("when_full", DROPS)
def test_a_full_session_stops_nobody(make: Any, when_full: str, qos: int) -> None:
    """When one session is full every publisher hears success, and clients that read get every message."""
    world = make(queued_messages=2, when_full=when_full)
    away(world, "forgotten", "#", qos=qos)
    healthy, sender = world.client("healthy"), world.client("p")
    healthy.subscribe("t", qos=qos)
    got = []
    for number in range(50):
        sender.publish("t", b"%d" % number, qos)
        assert codes(sender) == [0]
        for message in healthy.messages():
            got.append(message.payload)
            healthy.send(Puback(message.packet_id) if qos == 1 else Pubrec(message.packet_id))
        sender.send(*([Pubrel(sender._packet_id)] if qos == 2 else []))
    assert got == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize(
    ("when_full", "told", "kept"),
    [
        ("drop-new", "3 since 1970-01-01T00:16:40.000Z", [b"0", b"1"]),
        ("drop-old", "3 since 1970-01-01T00:16:40.000Z", [b"3", b"4"]),
        ("end-session", "3 since 1970-01-01T00:16:40.000Z", []),
    ],
)
def test_who_lost_something_is_told_once(make: Any, when_full: str, told: str, kept: list[bytes]) -> None:
    """The next CONNACK of a client tells once how many messages it lost, and since when."""
    world = make(queued_messages=2, when_full=when_full)
    away(world, "a")
    sender = world.client("p")
    for number in range(5):
        sender.publish("t", b"%d" % number, 1)
    assert back(world, "a") == (told, kept)
    assert back(world, "a") == (None, [])
    assert world.broker.usage.losing_clients == 0


def test_the_losses_of_a_session_that_is_over_are_told() -> None:
    """Losses of a session that is over are told at the next connection, also with a clean start."""
    world = World(queued_messages=1, in_flight=1)
    for client_id, expiry_s in (("short", 0), ("long", DAY)):
        client = world.client(client_id, session_expiry=expiry_s)
        client.subscribe("t", qos=1)
        client.lose() if expiry_s else None
    sender = world.client("p")
    for _ in range(4):
        sender.publish("t", b"x", 1)
    assert back(world, "short") == ("2 since 1970-01-01T00:16:40.000Z", [])
    assert back(world, "long", clean_start=True) == ("3 since 1970-01-01T00:16:40.000Z", [])


def test_a_server_that_may_remember_fewer_losses_forgets_the_oldest() -> None:
    """Losses are bounded by the number of sessions after a restart, too: those that began first are forgotten, also on
    the disk, whatever the names of their clients.
    """
    world = DurableWorld(queued_messages=1, in_flight=1, sessions=9)
    for client_id in ("c", "a", "d", "b"):
        client = world.client(client_id, session_expiry=DAY)
        client.subscribe(client_id, qos=1)
        client.lose()
    sender = world.client("p")
    for client_id in ("c", "a", "d", "b"):
        world.monotonic += 1
        for _ in range(3):
            sender.publish(client_id, b"x", 1)
    world.commit()
    assert world.broker.usage.losing_clients == 4
    world.limits["sessions"] = 2
    world.crash()
    assert world.broker.usage.losing_clients == 2
    world.commit()
    assert sorted(world.storage.streams[Stream.LOSSES]) == ["b", "d"]


def test_a_client_that_cannot_be_told_is_told_later() -> None:
    """A client that cannot be told, in 3.1.1 or for its packet limit, is told at a later connection."""
    world = World(queued_messages=1)
    away(world, "a")
    sender = world.client("p")
    for _ in range(2):
        sender.publish("t", b"x", 1)
    for connect in (
        Connect("a", clean_start=False, version=MQTT_3_1_1),
        Connect("a", clean_start=False, properties=ConnectProperties(session_expiry=DAY, maximum_packet_size=40)),
    ):
        client = Client(world, connect.version)
        client.send(connect)
        connack = client.received()[0]
        assert isinstance(connack, Connack)
        assert (connack.session_present, connack.properties.user_properties) == (True, ())
        client.lose()
    assert back(world, "a")[0] == "1 since 1970-01-01T00:16:40.000Z"


@pytest.mark.parametrize("when_full", ["drop-new", "drop-old"])
def test_losses_survive_a_crash(when_full: str) -> None:
    """The count of losses, its beginning, and that it was told survive a crash."""
    world = DurableWorld(queued_messages=1, when_full=when_full)
    away(world, "a")
    for _ in range(2):
        sender = world.client("p")
        for number in range(3):
            sender.publish("t", b"%d" % number, 1)
        world.work()
        world.crash(away_s=60)
    told, kept = back(world, "a")
    assert (told, len(kept)) == ("5 since 1970-01-01T00:16:40.000Z", 1)
    world.work()
    world.crash()
    assert back(world, "a") == (None, [])
    assert "losses" not in world.storage.count()


def test_the_log_names_who_lost_something() -> None:
    """The log names the session that lost something, not its publishers, and not for every message."""
    world = World(queued_messages=1)
    away(world, "offender")
    sender = world.client("p")
    for _ in range(100):
        sender.publish("t", b"x", 1)
    (overflow,) = world.broker.reports.take_overflows()
    assert (overflow.session.client_id, overflow.dropped) == ("offender", 1)
    assert world.broker.reports.take_denials() == []
    world.sleep(61)
    sender.publish("t", b"x", 1)
    assert [overflow.dropped for overflow in world.broker.reports.take_overflows()] == [100]
    assert (world.broker.counters.dropped_full, world.broker.counters.dropped) == (100, 100)


def test_the_log_names_who_stops_publishers() -> None:
    """With the strict choice the log names the full session beside the refused publisher."""
    world = World(queued_messages=1, when_full="refuse")
    away(world, "offender")
    sender = world.client("p")
    for _ in range(10):
        sender.publish("t", b"x", 1)
    (overflow,) = world.broker.reports.take_overflows()
    assert (overflow.session.client_id, overflow.dropped, overflow.since) == ("offender", 0, "1970-01-01T00:16:40.000Z")
    assert {denial.client_id for denial in world.broker.reports.take_denials()} == {"p"}
    assert back(world, "offender") == (None, [b"x"])


def test_an_ended_session_is_gone_with_its_subscriptions(make: Any) -> None:
    """A session that is ended for room loses its subscriptions; its client is disconnected (0x97) and starts anew."""
    world = make(queued_messages=1, when_full="end-session")
    client, sender = world.client("c", session_expiry=DAY, receive_maximum=1), world.client("p")
    client.subscribe("t", qos=1)
    for _ in range(3):
        sender.publish("t", b"x", 1)
    *_, last = client.received()
    assert isinstance(last, Disconnect)
    assert last.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert (world.broker.usage.subscriptions, world.broker.counters.ended_full) == (0, 1)
    assert not world.client("c", clean_start=False).connack.session_present
    assert world.broker.usage.held_bytes == 0


def test_the_first_messages_are_the_servers_own(make: Any) -> None:
    """When the oldest messages are dropped, replies stay, and the oldest other one goes."""
    world = make(application=Desk(Route(Publish("t", b"reply", 1))), queued_messages=3, when_full="drop-old")
    away(world, "a")
    sender = world.client("p")
    sender.publish("desk", b"", 1)
    for number in range(4):
        sender.publish("t", b"%d" % number, 1)
    assert back(world, "a") == ("2 since 1970-01-01T00:16:40.000Z", [b"reply", b"2", b"3"])


@pytest.mark.parametrize("effect", [Route(Publish("t", b"!", 1)), Deliver("c", Publish("t", b"!", 1))])
@pytest.mark.parametrize("when_full", [*DROPS, "refuse"])
def test_replies_and_notifications_are_never_dropped(make: Any, when_full: str, effect: Effect) -> None:
    """A client that cannot take a reply or notification loses its connection, so that it knows, and keeps its
    session."""
    world = make(application=Desk(effect), queued_messages=1, when_full=when_full)
    client, sender = world.client("c", session_expiry=DAY, receive_maximum=1), world.client("p")
    client.subscribe("t", qos=1)
    for _ in range(2):
        sender.publish("t", b"x", 1)
    assert not client.is_ended
    sender.publish("desk", b"", 1)
    assert client.is_ended
    assert world.broker.counters.dropped_unowned == 1
    assert back(world, "c") == ("1 since 1970-01-01T00:16:40.000Z", [b"x", b"x"])


@pytest.mark.parametrize("when_full", DROPS)
def test_a_will_finds_a_full_queue(make: Any, when_full: str) -> None:
    """A will to a full session is dropped there, and delivered to the others."""
    world = make(queued_messages=1, when_full=when_full)
    away(world, "full")
    reader, sender = world.client("r"), world.client("p")
    reader.subscribe("t", qos=1)
    sender.publish("t", b"x", 1)
    world.client("dying", will=Will("t", b"will", 1)).lose()
    assert [message.payload for message in reader.messages()] == [b"x", b"will"]
    assert world.broker.counters.dropped_unowned == 0
    assert world.broker.counters.dropped_full > 0


def test_retained_messages_are_retained_although_somebody_is_full(make: Any) -> None:
    """A retained message is kept although a session is full, and a later subscriber gets it."""
    world = make(queued_messages=1)
    away(world, "full")
    sender = world.client("p")
    for number in range(3):
        sender.publish("t", b"%d" % number, 1, retain=True)
    (message,) = world.client("new").subscribe("t", qos=1)
    assert isinstance(message, Publish)
    assert message.payload == b"2"


def test_a_share_gives_its_message_to_a_member_that_has_room(make: Any) -> None:
    """A share gives messages to members with room, and only if none has any does one of them lose something."""
    world = make(queued_messages=2)
    for client_id in ("a", "b"):
        away(world, client_id, "$share/g/t")
    sender = world.client("p")
    for number in range(6):
        sender.publish("t", b"%d" % number, 1)
    (told_a, got_a), (told_b, got_b) = back(world, "a"), back(world, "b")
    assert sorted(got_a + got_b) == [b"0", b"1", b"2", b"3"]
    assert [told for told in (told_a, told_b) if told] in (
        ["2 since 1970-01-01T00:16:40.000Z"],
        ["1 since 1970-01-01T00:16:40.000Z"] * 2,
    )


@pytest.mark.parametrize("when_full", DROPS)
def test_many_subscribers_of_which_some_are_full(make: Any, when_full: str) -> None:
    """Of many subscribers, also in slices, those with room get the message, full ones lose it, and the publisher is
    answered."""
    world = make(queued_messages=1, when_full=when_full)
    clients = [world.client(f"c{number}", session_expiry=DAY, receive_maximum=1) for number in range(200)]
    for client in clients:
        client.subscribe("t", qos=1)
    sender = world.client("p")
    for number in range(4):
        sender.publish("t", b"%d" % number, 1)
        assert codes(sender) == [0]
        for client in clients[::2]:
            for message in client.messages():
                client.send(Puback(message.packet_id))
    assert not any(client.is_ended for client in clients[::2])
    assert world.broker.counters.dropped_full >= 200


# -- a server that is full as a whole ----------------------------------------------------------------------------------


@pytest.mark.parametrize("when_full", DROPS)
def test_who_holds_most_makes_room(make: Any, when_full: str) -> None:
    """When one session fills the server, its queue gives room, and clients that read lose nothing, whatever the message
    size."""
    world = make(held_bytes=1_000_000, reserved_bytes=2_000, when_full=when_full)
    away(world, "hoarder", "hoard")
    healthy, sender = world.client("healthy"), world.client("p")
    healthy.subscribe("t", qos=1)
    for number in range(12):
        sender.publish("hoard", b"%d" % number + bytes(99_000), 1)
    got = 0
    for _ in range(20):
        sender.publish("t", bytes(50_000), 1)
        for message in healthy.messages():
            got += 1
            healthy.send(Puback(message.packet_id))
    assert set(codes(sender)) <= {0, ReasonCode.NO_MATCHING_SUBSCRIBERS}  # of a session that ended
    assert (got, world.broker.usage.held_bytes <= 1_000_000) == (20, True)
    told, kept = back(world, "hoarder")
    assert told is not None
    if when_full == "drop-new":
        assert kept[0].startswith(b"0")
    if when_full == "drop-old":
        assert kept[-1].startswith(b"11")


def test_the_one_that_holds_most_bears_its_own_messages() -> None:
    """The session that holds most loses its own messages, and no other gives it room."""
    world = World(held_bytes=500_000, reserved_bytes=2_000)
    away(world, "small", "small")
    away(world, "large", "large")
    sender = world.client("p")
    for _ in range(3):
        sender.publish("small", bytes(50_000), 1)
    for _ in range(20):
        sender.publish("large", bytes(50_000), 1)
    assert set(codes(sender)) == {0}
    assert back(world, "small") == (None, [bytes(50_000)] * 3)
    assert back(world, "large")[0] == "14 since 1970-01-01T00:16:40.000Z"


def test_who_holds_much_in_flight_bears_it_as_well() -> None:
    """What is in flight counts too: a session that holds much of it takes nothing from a smaller queue."""
    world = World(held_bytes=300_000, reserved_bytes=2_000)
    away(world, "small", "small")
    large, sender = world.client("large", session_expiry=DAY), world.client("p")
    large.subscribe("large", qos=1)
    for _ in range(2):
        sender.publish("small", bytes(20_000), 1)
    for _ in range(20):  # they are all on their way at once
        sender.publish("large", bytes(15_000), 1)
        large.received()
    assert set(codes(sender)) == {0}
    assert back(world, "small") == (None, [bytes(20_000)] * 2)
    large.lose()
    assert back(world, "large")[0] is not None


def test_a_full_server_still_takes_wills_aliases_and_qos_2() -> None:
    """Wills, aliases and QoS 2 messages are accepted on a full server as long as a queue can give room for them."""
    world = World(held_bytes=300_000, reserved_bytes=0)
    away(world, "hoarder", "hoard")
    sender = world.client("p")
    for _ in range(5):
        sender.publish("hoard", bytes(70_000), 1)
    assert set(codes(sender)) == {0}
    assert world.client("w", will=Will("w", bytes(30_000))).connack.reason_code == 0
    sender.send(Publish("a" * 60_000, b"x", properties=PublishProperties(topic_alias=1)))
    assert not sender.is_ended
    sender.publish("hoard", b"x", 2)
    assert codes(sender) == [0]
    assert world.broker.usage.held_bytes <= 300_000


def test_with_the_strict_choice_nobody_loses_anything(make: Any) -> None:
    """With the strict choice nobody loses anything: the publisher is refused, whoever holds most."""
    world = make(held_bytes=300_000, reserved_bytes=2_000, when_full="refuse")
    away(world, "hoarder", "hoard")
    away(world, "other", "t")
    sender = world.client("p")
    for _ in range(4):
        sender.publish("hoard", bytes(90_000), 1)
    sender.publish("t", bytes(90_000), 1)
    assert codes(sender) == [0, 0, 0, 0x97, 0x97]
    assert back(world, "hoarder") == (None, [bytes(90_000)] * 3)


@pytest.mark.parametrize("choice", ["", "drop", "DROP-NEW", None, 1])
def test_another_choice_is_refused(choice: Any) -> None:
    """The error about another choice names the choices."""
    with pytest.raises(InvalidArgumentError, match="when_full must be one of 'drop-new', 'drop-old'"):
        BrokerLimits(when_full=choice)


def test_endless_sessions_end_after_a_week_unless_somebody_says_so() -> None:
    """A session ends after a week at most unless a setting says otherwise, and CONNACK tells a client that asked for
    more."""
    world = World()
    client = world.client("c", session_expiry=0xFFFF_FFFF)
    assert client.connack.properties.session_expiry == 7 * DAY
    client.lose()
    world.client("old", version=MQTT_3_1_1, clean_start=False).lose()
    world.sleep(7 * DAY - 1)
    assert world.broker.usage.sessions == 2
    world.sleep(2)
    assert world.broker.usage.sessions == 0
