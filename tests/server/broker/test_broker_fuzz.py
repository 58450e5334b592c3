"""Any packets in any order: the broker never raises, never forgets its invariants, and both clocks only go on."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_driver import Client, World

from statestore_client.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    DisconnectProperties,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscribeProperties,
    Subscription,
    Unsubscribe,
    Will,
    WillProperties,
)

IDS = st.integers(1, 4)
TOPICS = st.sampled_from(["a", "a/b", "a/b/c", "$x", "b"])
FILTERS = st.sampled_from(["a", "a/#", "+/b", "#", "$share/g/a/#", "$share/g/+", "$x"])
QOS = st.integers(0, 2)


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    qos = draw(QOS)
    properties = PublishProperties(
        message_expiry=draw(st.none() | st.integers(0, 5)), topic_alias=draw(st.none() | st.integers(1, 3))
    )
    topic = draw(TOPICS) if properties.topic_alias is None else draw(TOPICS | st.just(""))
    payload = draw(st.sampled_from([b"", b"x", b"y" * 300]))
    return Publish(topic, payload, qos, draw(st.booleans()), False, draw(IDS) if qos else 0, properties)


SUBSCRIPTIONS = st.builds(Subscription, FILTERS, QOS, st.just(False), st.booleans(), st.integers(0, 2))
WILLS = st.builds(
    Will, TOPICS, st.just(b"w"), QOS, st.booleans(), st.builds(WillProperties, will_delay=st.none() | st.integers(0, 9))
)
CONNECTS = st.builds(
    Connect,
    st.sampled_from(["", "c1", "c2", "c3"]),
    version=st.sampled_from([4, 5]),
    clean_start=st.booleans(),
    keep_alive=st.integers(0, 5),
    will=st.none() | WILLS,
    properties=st.builds(
        ConnectProperties,
        session_expiry=st.none() | st.integers(0, 9),
        receive_maximum=st.none() | st.integers(1, 3),
        maximum_packet_size=st.none() | st.integers(60, 400),
    ),
)
PACKETS: st.SearchStrategy[Packet] = st.one_of(
    publishes(),
    publishes(),
    st.builds(Puback, IDS),
    st.builds(Pubrec, IDS, st.sampled_from([0, 0x80])),
    st.builds(Pubrel, IDS),
    st.builds(Pubcomp, IDS),
    st.builds(
        Subscribe,
        IDS,
        st.lists(SUBSCRIPTIONS, min_size=1, max_size=3).map(tuple),
        st.builds(SubscribeProperties, subscription_id=st.none() | st.integers(1, 9)),
    ),
    st.builds(Unsubscribe, IDS, st.lists(FILTERS, min_size=1, max_size=2).map(tuple)),
    st.just(Pingreq()),
    st.builds(Disconnect, st.sampled_from([0, 4]), st.builds(DisconnectProperties, st.none() | st.integers(0, 9))),
    st.just(Auth()),
    st.just(Connack()),
    CONNECTS,
)
STEPS = st.lists(
    st.tuples(st.integers(0, 3), CONNECTS.map(lambda c: ("open", c)))
    | st.tuples(st.integers(0, 3), PACKETS.map(lambda p: ("send", p)))
    | st.tuples(
        st.integers(0, 3), st.sampled_from([("lose", None), ("congest", None), ("drain", None), ("wait", None)])
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_the_broker_survives_everything(steps: list[tuple[int, tuple[str, Packet | None]]]) -> None:
    """Four connections with three names and small limits raise no exception, and the counts agree afterwards."""
    world = World(
        queued_messages=3,
        receive_maximum=2,
        retained_messages=2,
        subscriptions_per_session=3,
        outbox_bytes=500,
        session_expiry_s=0xFFFFFFFF,
    )
    clients: dict[int, Client] = {}
    for slot, (what, packet) in steps:
        client = clients.get(slot)
        if what == "open" and packet is not None:
            if client is not None:
                client.lose()
            clients[slot] = client = Client(world, packet.version if isinstance(packet, Connect) else 5)
            client.send(packet)
        elif client is None:
            continue
        elif what == "send" and packet is not None:
            client.send(packet)
        elif what == "lose":
            client.lose()
            del clients[slot]
        elif what == "congest":
            world.broker.congested(client.connection)
        elif what == "drain":
            world.broker.drained(client.connection, world.now)
        else:
            world.sleep(1.5)
        check(world)
        for other in clients.values():
            if not other.connection.is_congested:
                other.received()
    for client in clients.values():
        client.lose()
    world.sleep(20)
    check(world)
    assert all(session.expiry_s is None for session in world.broker.sessions())
    for session in world.broker.sessions():
        last = Client(world)
        last.send(Connect(session.client_id))
        last.lose()
    check(world)
    usage = world.broker.usage
    assert (usage.sessions, usage.held_bytes, usage.subscription_bytes) == (0, 0, 0)


def check(world: World) -> None:
    """No invariant is broken, no limit passed, and no fault escaped."""
    assert world.broker.audit() == ()
    for session in world.broker.sessions():
        assert session.queued <= 2 * 3
        assert session.unreleased <= 4
    assert world.broker.usage.retained_messages <= 2
    assert world.broker.reports.take_faults() == []
