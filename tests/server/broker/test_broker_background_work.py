"""However many subscribers there are, no turn takes long: work is counted, not timed. Crashes between turns."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.broker_driver import Client, World, calls_in
from support.durable_broker import DAY, DurableWorld, texts_in

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from statestore_client.server.broker.subscriptions import BLOCK, ChunkedDict

#: Calls of functions in one turn, Python's and C's; about a millisecond.
MOST_CALLS = 6_000


def most_calls(world: World, sender: Client, packet: Publish) -> int:
    """In the longest turn that a message causes, until everybody has it."""
    most = calls_in(lambda: sender.send(packet))
    while world.broker.has_work:
        most = max(most, calls_in(lambda: world.broker.work(world.now)))
        if isinstance(world, DurableWorld):
            most = max(most, calls_in(world.commit))
    return most


def crowd(world: World, number: int, *filters: str, qos: int = 1, expiry_s: int = DAY) -> list[Client]:
    clients = [world.client(f"c{index}", session_expiry=expiry_s) for index in range(number)]
    for client in clients:
        client.subscribe(*filters, qos=qos)
    return clients


# -- turns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "when_full"),
    [(("t",), "drop-new"), (("t",), "refuse"), (("t", "#", "+"), "drop-new"), (("$share/g/t",), "drop-new")],
    ids=["one", "one that may refuse", "overlapping", "share"],
)
@pytest.mark.parametrize("kind", [World, DurableWorld], ids=["in memory", "durable"])
def test_a_message_to_many_is_done_in_short_turns(kind: Any, filters: tuple[str, ...], when_full: str) -> None:
    """Planning, acknowledging, recording and delivering a message to twice as many takes no turn notably more work."""
    found = []
    for number in (500, 1_000):
        world = kind(connections=20_000, when_full=when_full)
        crowd(world, number, *filters)
        sender = world.client("p")
        sender.publish("t", b"first", 1)
        world.work()
        found.append(most_calls(world, sender, Publish("t", b"x", 1, packet_id=9)))
    assert max(found) < MOST_CALLS
    assert found[1] - found[0] < 500 * 16 / BLOCK  # only the records of slices


@pytest.mark.parametrize("kind", [World, DurableWorld], ids=["in memory", "durable"])
def test_expired_messages_in_long_queues_are_found_in_short_turns(kind: Any) -> None:
    """Expired messages are removed a thousand at a time, in any order, and the others keep theirs."""
    world = kind(queued_messages=4_000)
    for client in crowd(world, 2, "t"):
        client.lose()
    sender = world.client("p")
    for number in range(4_000):
        sender.publish("t", b"%d" % number, 1, message_expiry=None if number % 4 else 5)
        sender.received()
    world.sleep(6)
    most = 0
    for number in range(8):
        packet = Publish("t", b"new", 1, packet_id=number + 1)
        most = max(most, calls_in(lambda packet=packet: sender.send(packet)))  # type: ignore[misc]
        world.sleep(0.01)
    assert most < 2 * MOST_CALLS
    assert world.broker.counters.dropped_expired > 400
    texts = []
    client = Client(world)
    client.send(Connect("c0", clean_start=False, properties=ConnectProperties(session_expiry=DAY)))
    while new := client.messages():
        texts += [message.payload for message in new]
        client.send(*[Puback(message.packet_id) for message in new])
    old = [int(text) for text in texts if text != b"new"]
    assert old == [number for number in range(4_000) if number % 4]
    assert texts[len(old) :] == [b"new"] * (len(texts) - len(old))


def test_a_share_whose_members_are_away() -> None:
    """Members of a share that cannot take a message are not asked each time, and one that is here is found."""
    found = []
    for number in (200, 800):
        world = World(connections=20_000)
        members = crowd(world, number, "$share/g/t")
        for member in members:
            member.lose()
        here = world.client("here")
        here.subscribe("$share/g/t", qos=1)
        sender = world.client("p")
        found.append(most_calls(world, sender, Publish("t", b"x", 1, packet_id=9)))
        assert [message.payload for message in here.messages()] == [b"x"]
    assert found[0] == found[1]


def test_room_for_a_new_session_is_found_at_once() -> None:
    """Finding a session to end for a new one looks at no absent client with messages."""
    found = []
    for number in (200, 800):
        world = World(sessions=number + 3)
        for client in crowd(world, number, "t"):
            client.lose()
        sender = world.client("p")
        sender.publish("t", b"x", 1)
        world.work()
        for name in ("older", "newer"):
            world.client(name, session_expiry=DAY).lose()
        found.append(calls_in(lambda world=world: world.client("new")))  # type: ignore[misc]
        assert world.broker.counters.evicted_sessions == 1
        assert {view.client_id for view in world.broker.sessions()} >= {"newer", "new", "c0", f"c{number - 1}"}
    assert abs(found[1] - found[0]) < 10


def test_a_session_that_holds_nothing_any_more_is_dispensable() -> None:
    """A session whose waiting messages gave room to others may be ended for a new one."""
    world = World(sessions=3, held_bytes=100_000, reserved_bytes=2_000)
    (hoarder,) = crowd(world, 1, "hoard")
    hoarder.lose()
    sender, reader = world.client("p"), world.client("r")
    reader.subscribe("t", qos=1)
    sender.publish("hoard", bytes(60_000), 1)
    refused = Client(world)
    refused.send(Connect("new"))
    assert refused.one(Connack).reason_code == ReasonCode.QUOTA_EXCEEDED
    sender.publish("t", bytes(60_000), 1)
    assert len(reader.messages()) == 1
    assert world.client("new").connack.reason_code == 0


# -- shares -----------------------------------------------------------------------------------------------------------


def test_members_of_a_share_come_and_go() -> None:
    """Whatever members of a share do, a message goes to exactly one, and to one that takes it at once if there is
    any."""
    chance = random.Random(3)
    for _ in range(30):
        world = World()
        names = [f"m{index}" for index in range(5)]
        here: dict[str, Client] = {}
        unread: dict[str, list[Publish]] = {name: [] for name in names}
        sender, got, sent = world.client("p"), 0, 0

        def take(client: Client, name: str, unread: dict[str, list[Publish]] = unread) -> int:
            new = client.messages()
            unread[name] += new
            return len({message.payload for message in new if not message.dup})

        for name in names:
            here[name] = world.client(name, session_expiry=DAY, receive_maximum=2)
            here[name].subscribe("$share/g/t", qos=1)
        for number in range(60):
            name = chance.choice(names)
            action = chance.choice(["publish", "publish", "acknowledge", "leave", "come"])
            if action == "publish":
                ready = [each for each in here if len(unread[each]) < 2]
                sender.publish("t", str(number).encode(), 1)
                sent += 1
                before = got
                got += sum(take(client, each) for each, client in here.items())
                assert got == before + bool(ready)  # else it waits
                if not ready:
                    got += 1
                    break
            elif action == "acknowledge" and name in here and unread[name]:
                here[name].send(Puback(unread[name].pop(0).packet_id))
                take(here[name], name)
            elif action == "leave" and name in here:
                here.pop(name).lose()
                unread[name].clear()
        assert got == sent


@pytest.mark.parametrize("kind", [World, DurableWorld], ids=["in memory", "durable"])
def test_slices_that_interleave_keep_the_order(kind: Any) -> None:
    """However turns of publishers, slices, acknowledgements and cuts interleave, each subscriber gets all of a
    publisher's messages on a topic in order, and nothing twice."""
    chance = random.Random(7)
    world = kind(in_flight=3)
    names = [f"c{index}" for index in range(BLOCK + 20)]
    for name in names:
        client = world.client(name, session_expiry=DAY)
        client.subscribe("t/1", "t/+" if chance.random() < 0.5 else "t/2", qos=chance.choice((1, 2)))
        client.lose()
    here: dict[str, Client] = {}
    got: dict[str, list[bytes]] = {name: [] for name in names}
    senders = [world.client(f"s{index}", session_expiry=DAY, receive_maximum=100) for index in range(3)]
    sent: list[list[str]] = [[], [], []]

    def read(name: str, *, acknowledges: bool) -> None:
        client = here[name]
        if isinstance(world, DurableWorld):
            world.commit()
        for packet in client._decoder.feed(client.connection.take()) if client.connection.outbox else ():
            if isinstance(packet, Publish):
                if not packet.dup:
                    got[name].append(packet.payload)
                if acknowledges:
                    client.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                client.send(Pubcomp(packet.packet_id))

    for _ in range(600):
        action, name = chance.choice(["publish", "work", "read", "come"]), chance.choice(names)
        which = chance.randrange(3)
        if action == "publish" and not senders[which].connection.pending:
            topic = chance.choice(("t/1", "t/2"))
            sent[which].append(topic)
            text = b"%d %d" % (which, len(sent[which]))
            senders[which].send(Publish(topic, text, chance.choice((1, 2)), packet_id=len(sent[which])))
        elif action == "work":
            world.broker.work(world.now)
        elif action == "read" and name in here:
            read(name, acknowledges=True)
        elif action == "come" and name not in here:
            here[name] = Client(world)
            wanted = ConnectProperties(session_expiry=DAY)
            here[name].send(Connect(name, clean_start=False, properties=wanted))
    while world.broker.has_work:
        world.broker.work(world.now)
    assert min(map(len, sent)) > 3
    for name in names:
        if name not in here:
            here[name] = Client(world)
            wanted = ConnectProperties(session_expiry=DAY)
            here[name].send(Connect(name, clean_start=False, properties=wanted))
        for _ in range(500):
            read(name, acknowledges=True)
        for which in range(3):
            numbers = [int(text.split()[1]) for text in got[name] if text.startswith(b"%d " % which)]
            assert sorted(numbers) == list(range(1, len(sent[which]) + 1)), name
            for topic in ("t/1", "t/2"):
                own = [number for number in numbers if sent[which][number - 1] == topic]
                assert own == sorted(own), name


# -- crashes in between -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("filters", [("t",), ("t", "#")], ids=["one", "overlapping"])
def test_a_crash_between_two_turns_loses_no_copy_and_repeats_none(qos: int, filters: tuple[str, ...]) -> None:
    """After a crash between any two turns what was acknowledged reaches all, the rest is sent again, and QoS 2 arrives
    once."""
    number = BLOCK + 5
    slices = 0
    while True:
        world = DurableWorld()
        clients = crowd(world, number, *filters, qos=2)
        world.client("plain").subscribe(*filters, qos=2)  # its session ends in the crash
        for client in clients[::2]:
            client.lose()
        sender = world.client("s", session_expiry=DAY)
        packet = Publish("t", b"x", qos, packet_id=7)
        sender.send(packet)
        for _ in range(slices):
            world.broker.work(world.now)
            world.commit()
        is_done = not world.broker.has_work
        was_acknowledged = bool(sender.connection.outbox)
        early: dict[str, list[Publish]] = {}
        for client in clients[1::2]:  # some get it before the crash, and finish the exchange or do not
            data = client.connection.take()
            early[client.connection.client_id] = [p for p in client._decoder.feed(data) if isinstance(p, Publish)]
        world.crash()
        again, _ = world.back("s")
        if not was_acknowledged:
            again.send(Publish("t", b"x", qos, False, True, packet.packet_id))
            again.received()
        for index in range(number):
            client, packets = world.back(f"c{index}")
            texts = texts_in(packets)
            assert texts == [b"x"] or (qos == 1 and not was_acknowledged and set(texts) == {b"x"}), (slices, index)
        if is_done:
            return
        slices += 1


def test_a_repetition_on_a_new_connection_is_the_same_message() -> None:
    """A QoS 2 message that is repeated on a new connection before it was accepted is the same message."""
    world = DurableWorld()
    clients = crowd(world, 2 * BLOCK, "t", qos=2)
    sender = world.client("s", session_expiry=DAY)
    sender.send(Publish("t", b"x", 2, packet_id=7))
    sender.lose()
    again = Client(world)
    again.send(Connect("s", clean_start=False, properties=ConnectProperties(session_expiry=DAY)))
    again.send(Publish("t", b"x", 2, False, True, 7))
    assert [packet for packet in again.received() if isinstance(packet, Pubrec)] == [Pubrec(7)]
    again.send(Pubrel(7))
    assert again.one(Pubcomp) == Pubcomp(7)
    for client in clients:
        assert len(client.messages()) == 1


def test_what_is_still_to_be_copied_leaves_nothing_behind() -> None:
    """After the copies, and after a crash in between, the disk holds what the sessions hold and no more."""
    number, slices, is_done = BLOCK + 1, 0, False
    while not is_done:
        world = DurableWorld()
        for client in crowd(world, number, "t"):
            client.lose()
        world.client("s").send(Publish("t", b"x", 1, packet_id=7))
        for _ in range(slices):
            world.broker.work(world.now)
            world.commit()
        is_done, slices = not world.broker.has_work, slices + 1
        was_accepted = "messages" in world.storage.count()
        world.crash()
        world.work()
        found = world.storage.count()
        assert found.get("copies", 0) == 0
        expected = (1, number) if was_accepted else (0, 0)
        assert (found.get("messages", 0), found.get("deliveries", 0)) == expected
        for index in range(number):
            client, packets = world.back(f"c{index}")
            client.send(*[Puback(packet.packet_id) for packet in packets if isinstance(packet, Publish)])
        world.commit()
        assert set(world.storage.count()) == {"sessions", "subscriptions"}


def test_nobody_is_copied_to_when_one_of_many_is_full() -> None:
    """With the strict choice the publisher is refused after all subscribers were asked in slices, and nobody gets a
    copy."""
    world = World(when_full="refuse", queued_messages=1)
    clients = crowd(world, 2 * BLOCK, "t")
    clients[-1].lose()
    sender = world.client("p")
    sender.publish("t", b"1", 1)
    assert sender.one(Puback).reason_code == 0
    for client in clients[:-1]:
        assert len(client.messages()) == 1
    sender.publish("t", b"2", 1, retain=True)
    assert sender.one(Puback).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert not any(client.messages() for client in clients[:-1])
    assert world.broker.usage.retained_messages == 0


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_blocks_are_a_dictionary() -> None:
    """Blocks behave as a dictionary, whatever is put and discarded, and what was looked at does not change."""
    chance = random.Random(1)
    blocks: ChunkedDict[int, int] = ChunkedDict()
    model: dict[int, int] = {}
    for step in range(5_000):
        key = chance.randrange(300)
        if chance.random() < 0.5 + 0.3 * (step % 1_000 < 500):
            blocks.put(key, step)
            model[key] = step
        else:
            blocks.discard(key)
            model.pop(key, None)
        assert len(blocks) == len(model)
        assert (blocks.get(key), blocks.get(-1)) == (model.get(key), None)
        if step % 50 == 0:
            assert dict(member for block in blocks.blocks for member in block) == model
            assert [len(block) for block in blocks.blocks[:-1]] == [BLOCK] * (len(blocks.blocks) - 1)
