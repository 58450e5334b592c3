"""Random programs of a few clients, against the broker and against one that is too simple to be wrong."""

from __future__ import annotations

from random import Random
from typing import TypeAlias

import attrs
import pytest
from handmade import Seen, Will, ack, connect, disconnect, publish, subscribe, unsubscribe
from handmade_peer import Peer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_broker import Copy, Naive
from support.broker_driver import World
from support.broker_invariants import audit
from support.durable_broker import DurableWorld
from support.schedules import scaled

NAMES = ["a", "b", "c"]
TOPICS = ["t", "t/u", "t/u/v", "u", "$s/u"]
FILTERS = ["t", "t/u", "t/#", "+", "#", "+/u", "t/+", "$s/#", "u"]
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
EXPIRY, RECEIVE_MAXIMUM, IDENTIFIER = 0x11, 0x21, 0x0B

#: So many QoS 2 messages are not released in no program.
ROOMY = {"usual_receive_maximum": 1000}

#: What is done, by whom, and a seed for the rest: so a program is short to make and easy to shrink.
Step: TypeAlias = tuple[str, str, int]

#: Messages and acknowledgements are what most of a program is made of.
KINDS = [*["publish"] * 8, *["acknowledge"] * 8, *["subscribe"] * 4, "unsubscribe", "lose", "leave", "connect"]
KINDS += ["repeat", "release"]
names = st.sampled_from(NAMES)
steps = st.tuples(st.sampled_from(KINDS), names, st.integers(0, 2**32 - 1))


@attrs.define(eq=False)
class Run:
    """One program. After every step each client has got exactly what the naive broker says."""

    world: World
    has_wills: bool = True
    naive: Naive = attrs.Factory(Naive)
    peers: dict[str, Peer] = attrs.Factory(dict)
    serial: int = 0
    unreleased: dict[str, tuple[int, str, bytes]] = attrs.Factory(dict)  # the last QoS 2 message of each client

    def step(self, kind: str, name: str, seed: int) -> None:
        kind = kind if name in self.peers else "connect"
        getattr(self, f"do_{kind}")(name, Random(seed))
        for of, peer in self.peers.items():
            self.compare(of, peer)

    # -- what clients do ----------------------------------------------------------------------------------------------

    def do_connect(self, name: str, random: Random) -> None:
        version, stays, window = random.choice([5, 4]), random.random() < 0.8, random.choice([0, 1, 2, 9])
        will = random.choice([None, (random.choice(TOPICS), b"will", random.randrange(3), random.random() < 0.5)])
        will = will if self.has_wills else None
        self.world.sleep(10)  # nobody is so fast that the broker would hold it for flapping
        old = self.peers.pop(name, None)
        if old is not None:
            self.naive.leave(name, with_will=True)
        clean = not stays if version == 4 else random.random() < 0.2
        window = window if version == 5 else 0
        self.naive.connect(name, version, window or 1000, will, clean=clean, stays=stays)
        props = [(EXPIRY, 10**5)] * stays + [(RECEIVE_MAXIMUM, window)] * (window > 0) + [(0x17, 1)]
        peer = self.peers[name] = Peer(self.world, version)
        peer.send(connect(name, version, clean=clean, props=props, will=None if will is None else Will(*will)))
        if old is not None:
            old.ended(0x8E)
            old.lose()

    def do_lose(self, name: str, random: Random) -> None:
        self.peers.pop(name).lose()
        self.naive.leave(name, with_will=True)

    def do_leave(self, name: str, random: Random) -> None:
        peer = self.peers.pop(name)
        peer.send(disconnect())
        assert peer.raw() == b""
        self.naive.leave(name, with_will=False)

    def do_crash(self, name: str, random: Random) -> None:
        """The server is killed and started again."""
        self.world.work()
        self.world.crash()
        for of in list(self.peers):
            del self.peers[of]
            self.naive.leave(of, with_will=True)

    def do_subscribe(self, name: str, random: Random) -> None:
        peer, identifier = self.peers[name], random.choice([0, 0, 1, 2])
        wishes = [(random.choice(FILTERS), random.randrange(3)) for _ in range(random.randint(1, 3))]
        if peer.version == 5:
            wishes = [(of, level | random.choice([0, 4, 8, 12]) | random.randrange(3) << 4) for of, level in wishes]
        else:
            identifier = 0
        packet_id, props = peer.next_id(), [(IDENTIFIER, identifier)] * (identifier > 0)
        self.naive.subscribe(name, packet_id, wishes, [identifier] if identifier else [])
        peer.send(subscribe(packet_id, *wishes, version=peer.version, props=props))

    def do_unsubscribe(self, name: str, random: Random) -> None:
        peer = self.peers[name]
        packet_id, of = peer.next_id(), random.choices(FILTERS, k=random.randint(1, 3))
        self.naive.unsubscribe(name, packet_id, of)
        peer.send(unsubscribe(packet_id, *of, version=peer.version))

    def do_publish(self, name: str, random: Random) -> None:
        peer, topic, level = self.peers[name], random.choice(TOPICS), random.randrange(3)
        self.serial += 1
        retain, payload = random.random() < 0.4, random.choice([b"", b"%d" % self.serial, b"%d" % self.serial])
        packet_id = 1000 + self.serial if level else 0
        if level == 2:
            self.unreleased[name] = (packet_id, topic, payload)
        self.naive.publish(name, packet_id, topic, payload, level, retain=retain)
        peer.send(publish(topic, payload, level, packet_id, peer.version, retain=retain))

    def do_repeat(self, name: str, random: Random) -> None:
        """The same QoS 2 message again, perhaps on another connection, perhaps after its session was lost."""
        if name in self.unreleased:
            peer, (packet_id, topic, payload) = self.peers[name], self.unreleased[name]
            self.naive.publish(name, packet_id, topic, payload, 2, retain=False)
            peer.send(publish(topic, payload, 2, packet_id, peer.version, dup=True))

    def do_release(self, name: str, random: Random) -> None:
        packet_id = self.unreleased.get(name, (77, "", b""))[0]
        self.naive.release(name, packet_id)
        self.peers[name].send(ack(PUBREL, packet_id))

    def do_acknowledge(self, name: str, random: Random) -> None:
        outstanding = self.naive.outstanding(name)
        if not outstanding:
            return
        peer, copy = self.peers[name], random.choice(outstanding)
        refuses = random.random() < 0.2 and peer.version == 5 and copy.state == "sent"
        first = PUBCOMP if copy.state == "released" else PUBACK if copy.qos == 1 else PUBREC
        self.naive.acknowledge(name, copy, refuse=refuses)
        peer.send(ack(first, copy.packet_id, *([0x80] if refuses else [])))

    # -- what they get ------------------------------------------------------------------------------------------------

    def compare(self, name: str, peer: Peer) -> None:
        assert not peer.is_closed
        seen, told = peer.seen(), self.naive.take(name)
        assert [packet.kind for packet in seen] == [packet.kind for packet in told]
        for packet, expected in zip(seen, told, strict=True):
            if packet.kind == "PUBLISH" and expected.copy is not None:
                self.compare_message(name, packet, expected.copy)
            elif expected.copy is not None:
                assert packet.packet_id == expected.copy.packet_id
            else:
                assert (packet.packet_id, packet.codes) == (expected.packet_id, expected.codes)
                assert packet.kind != "CONNACK" or packet.flags == expected.flags

    def compare_message(self, name: str, packet: Seen, copy: Copy) -> None:
        shown = (packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, sorted(packet.all(IDENTIFIER)))
        ids = copy.ids if self.peers[name].version == 5 else []
        assert shown == (copy.topic, copy.payload, copy.qos, copy.retain, copy.dup, ids)
        if copy.dup:
            assert packet.packet_id == copy.packet_id
        elif copy.qos:
            holder = self.naive.holders[name]
            in_use = {other.packet_id for other in holder.copies + holder.released if other is not copy}
            assert packet.packet_id not in in_use | {0}
            copy.packet_id = packet.packet_id

    def end(self) -> None:
        """Everybody leaves for good; nothing is left behind."""
        for name in list(self.peers):
            self.do_leave(name, Random(0))
        for name in list(self.naive.holders):
            last = Peer(self.world)
            last.send(connect(name))
            last.lose()
        assert self.world.broker.usage.sessions == 0
        assert self.world.broker.usage.held_bytes == 0
        assert audit(self.world.broker) == ()


@pytest.mark.scaled
@settings(
    max_examples=max(40, scaled(150, 1500)),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(steps, min_size=40, max_size=100))
def test_random_programs(program: list[Step]) -> None:
    """In a random program every client gets the right packets in the right order, as by a broker too simple to be
    wrong."""
    run = Run(World(**ROOMY))
    for step in program:
        run.step(*step)
    run.end()


@pytest.mark.scaled
@settings(
    max_examples=max(30, scaled(100, 1000)),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(steps | st.tuples(st.just("crash"), names, st.just(0)), min_size=40, max_size=100))
def test_random_programs_and_crashes(program: list[Step]) -> None:
    """A random program gives the same on a broker that keeps its state on a disk and is killed in between. It has no
    wills, since a crash sends those of several clients in no defined order."""
    run = Run(DurableWorld(**ROOMY), has_wills=False)
    for step in program:
        run.step(*step)
    run.end()
