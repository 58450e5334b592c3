"""Administration of a running broker: pages of sessions and retained messages, and removals."""

from __future__ import annotations

import json
from base64 import b64decode

from administered import DAY, Administered, administered_world
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.mqtt.packets import Disconnect, Publish, ReasonCode, Will, WillProperties
from statestore_client.wire.administration import CONTROL_TOPIC, RetainedInfo, SessionInfo

__all__ = ["administered_world"]


def test_what_is_known_of_a_session(world: Administered) -> None:
    """A session is shown with user, times in seconds since the epoch, will, subscriptions and what waits."""
    will = Will("gone", b"", properties=WillProperties(will_delay=500))
    client = world.client("c", session_expiry=1000, will=will)
    client.subscribe("t", qos=1)
    client.lose()
    world.sleep(100)
    world.admin.publish("t", b"x", 1)
    world.admin.received()
    left_at = (world.monotonic - 100) + world.wall_ahead_ms / 1000
    (found,) = world.ask("sessions.list", client_id="c")["sessions"]
    assert SessionInfo.decode(found) == SessionInfo("c", None, 1000, False, left_at, "gone", (("t", 1),), 1, 0, 0)
    assert SessionInfo.decode(found).ends_at == left_at + 1000
    assert world.ask("sessions.list", client_id="nobody") == {"sessions": [], "next": None}


def test_a_session_with_many_subscriptions_comes_in_parts() -> None:
    """The subscriptions of a session come in parts, so that no answer is long, and the parts are all of them."""
    world = Administered(subscriptions_per_session=5000)
    filters = [f"f/{number}/{'x' * (number % 300)}" for number in range(2000)]
    for first in range(0, 2000, 100):
        if not first:
            client = world.client("many", session_expiry=DAY)
        client.subscribe(*filters[first : first + 100], qos=1)
    world.absent("other", "t")
    pages = list(world.pages("sessions.list"))
    assert all(sum(len(each["subscriptions"]) for each in page["sessions"]) <= 256 + 64 for page in pages)
    found = world.sessions()
    assert found["many"].subscriptions == tuple((name, 1) for name in filters)
    assert found["other"].subscriptions == (("t", 1),)
    again = [each for page in world.pages("sessions.list", client_id="many") for each in page["sessions"]]
    assert [name for each in again for name, _ in each["subscriptions"]] == filters


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 150)), max_size=40))
def test_pages_while_sessions_come_and_go(changes: list[tuple[str, int]]) -> None:
    """A session that is there all the time is listed exactly once and in order, connected or not, in pages of at most
    64, whatever happens between two pages."""
    world = Administered()
    stable = ["admin", *(f"s{number:03}" for number in range(150))]
    for name in stable[1:]:
        world.absent(name)
    todo = iter(changes)
    seen: list[str] = []
    for page in world.pages("sessions.list"):
        assert len(page["sessions"]) <= 64
        seen += [each["client_id"] for each in page["sessions"]]
        for what, number in [change for change, _ in zip(todo, range(15), strict=False)]:
            name = f"s{number:03}x"
            if what == "+":
                world.absent(name)
            else:
                world.ask("sessions.remove", client_ids=[name])
    assert [name for name in seen if name in set(stable)] == stable
    assert seen == sorted(set(seen))


def test_sessions_are_removed(world: Administered) -> None:
    """Sessions are removed; a connected client's only by force, and it is told why."""
    world.absent("away", "t")
    client = world.client("here", session_expiry=DAY)
    assert world.ask("sessions.remove", client_ids=["away", "here", "nobody"]) == {
        "removed": ["away"], "missing": ["nobody"], "connected": ["here"], "rest": [],
    }  # fmt: skip
    assert list(world.sessions()) == ["admin", "here"]
    assert world.broker.usage.subscriptions == 0
    assert world.ask("sessions.remove", client_ids=["here"], force=True)["removed"] == ["here"]
    assert client.one(Disconnect).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
    assert list(world.sessions()) == ["admin"]


def test_who_removes_himself(world: Administered) -> None:
    """A client that removes its own session gets the answer first."""
    payload = json.dumps({"command": "sessions.remove", "client_ids": ["admin"], "force": True}).encode()
    world.admin.publish(CONTROL_TOPIC, payload, 1, response_topic="answers", correlation_data=b"7")
    _, answer, disconnect = world.admin.received()
    assert isinstance(answer, Publish)
    assert json.loads(answer.payload)["removed"] == ["admin"]
    assert isinstance(disconnect, Disconnect)


def test_a_removed_session_sends_its_will(world: Administered) -> None:
    """Removing a session sends its delayed will (MQTT 5.0, 3.1.3.2.2)."""
    will = Will("gone", b"bye", properties=WillProperties(will_delay=500))
    world.client("c", session_expiry=1000, will=will).lose()
    witness = world.client("witness")
    witness.subscribe("gone")
    world.ask("sessions.remove", client_ids=["c"])
    assert [message.payload for message in witness.messages()] == [b"bye"]


def test_many_are_removed_in_parts(world: Administered) -> None:
    """One request removes only so many sessions as take a short time, and says which are left."""
    names = [f"c{number:03}" for number in range(100)]
    for name in names:
        world.absent(name)
    rest, requests = names, 0
    while rest:
        answer = world.ask("sessions.remove", client_ids=rest)
        assert len(answer["removed"]) <= 32
        rest, requests = answer["rest"], requests + 1
    assert requests == 4
    for number in range(3):
        world.absent(f"heavy{number}", "t")
    for number in range(200):
        world.admin.publish("t", b"%d" % number, 1)
    world.admin.received()
    answer = world.ask("sessions.remove", client_ids=["heavy0", "heavy1", "heavy2"])
    assert answer["removed"] == ["heavy0"]
    assert answer["rest"] == ["heavy1", "heavy2"]


def test_pruning(world: Administered) -> None:
    """Pruning goes by the time since the client left, and never removes a connected client's session."""
    for name in ("old1", "old2"):
        world.absent(name)
    world.sleep(100)
    world.absent("new")
    world.client("here", session_expiry=DAY)
    assert [page["removed"] for page in world.pages("sessions.prune", away_s=None)] == [[]]
    assert [page["removed"] for page in world.pages("sessions.prune", away_s=100)] == [["old1", "old2"]]
    for number in range(200):
        world.absent(f"x{number:03}")
    removed = [name for page in world.pages("sessions.prune", away_s=0) for name in page["removed"]]
    assert removed == ["new", *(f"x{number:03}" for number in range(200))]
    assert list(world.sessions()) == ["admin", "here"]


def test_retained_messages_come_in_pages(world: Administered) -> None:
    """Each retained message of clients, below $ as well, is listed once and in order, and none of the broker's own."""
    topics = [f"a/{number:03}" for number in range(200)] + ["a-b", "$x/y", "b/c"]
    for topic in topics:
        world.admin.publish(topic, topic.encode(), 1, retain=True)
    world.admin.received()
    world.admin.subscribe("$SYS/#")
    world.admin.received()
    assert sorted(message.topic for message in world.retained()) == sorted(topics)
    assert [message.topic for message in world.retained("a/+")] == topics[:200]
    assert [message.topic for message in world.retained("a/007")] == ["a/007"]
    assert [message.topic for message in world.retained("b/#")] == ["b/c"]
    (found,) = world.retained("b/c", payloads=True)
    assert found == RetainedInfo("b/c", 1, "admin", None, 3, b"b/c")
    assert world.retained("b/c")[0].payload is None


def test_a_large_payload_comes_in_parts(world: Administered) -> None:
    """The parts of a large payload are of the message that was there at the first one, even if it is replaced."""
    payload = bytes(range(256)) * 1000
    world.admin.publish("t", payload, 1, retain=True)
    world.admin.received()
    assert world.retained("t", payloads=True)[0].payload is None
    parts: list[bytes] = []
    while (size := sum(map(len, parts))) < len(payload):
        fields = world.ask("retained.payload", topic="t", offset=size)["message"]
        parts.append(b64decode(fields["payload"]))
        world.admin.publish("t", b"another one", 1, retain=True)
        world.admin.received()
    assert b"".join(parts) == payload
    assert world.ask("retained.payload", topic="t", offset=100)["message"] is None
    assert world.ask("retained.payload", topic="nothing")["message"] is None


def test_retained_messages_are_removed(world: Administered) -> None:
    """Retained messages are removed in parts, and subscribers are told nothing."""
    topics = [f"t/{number}" for number in range(50)]
    for topic in topics:
        world.admin.publish(topic, b"x", 1, retain=True)
    world.admin.received()
    witness = world.client("witness")
    witness.subscribe("new/#")
    answer = world.ask("retained.remove", topics=["nothing", *topics])
    assert len(answer["removed"]) + len(answer["rest"]) == 50
    answer = world.ask("retained.remove", topics=answer["rest"])
    assert answer["rest"] == []
    assert world.retained() == []
    assert witness.messages() == []
