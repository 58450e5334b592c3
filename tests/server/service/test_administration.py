"""Administration of a running broker: requests on ``$CONTROL``, pages, removals, and whom it is refused."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import attrs
import pytest
from broker_driver import Client, World
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.mqtt.packets import (
    Connect,
    Disconnect,
    Puback,
    Publish,
    PublishProperties,
    Pubrec,
    ReasonCode,
    Will,
    WillProperties,
)
from statestore_client.server import AccessRules, EmbeddedServer
from statestore_client.server.service.administration import Administration
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import StateStore
from statestore_client.wire.administration import CONTROL_TOPIC, RetainedInfo, SessionInfo
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.topics import COMMAND_TOPIC

_DAY = 86_400


class Administered(World):
    """A broker, its application, and an administrator who asks."""

    def __init__(self, **limits: Any) -> None:
        self.obstacle: str | None = None
        service = StateStoreService(StateStore(clock=HybridLogicalClock("n", guard=threading.Lock())))
        self.application = Administration(service, lambda _: self.obstacle)
        super().__init__(application=self.application, **limits)
        self.application.bind(self.broker.control)
        self.admin = self.client("admin")

    def ask_raw(self, payload: bytes, qos: int = 1, **properties: Any) -> dict[str, Any]:
        """The answer."""
        properties = {"response_topic": "answers", "correlation_data": b"7"} | properties
        self.admin.publish(CONTROL_TOPIC, payload, qos, **properties)
        acknowledgement, answer = self.admin.received()
        assert isinstance(acknowledgement, Puback)
        assert isinstance(answer, Publish)
        assert (answer.topic, answer.properties.correlation_data) == ("answers", properties["correlation_data"])
        assert len(answer.payload) < 1_000_000
        found: dict[str, Any] = json.loads(answer.payload)
        return found

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        return self.ask_raw(json.dumps({"command": command, **fields}).encode())

    def pages(self, command: str, **fields: Any) -> Iterator[dict[str, Any]]:
        place: dict[str, Any] = {}
        while True:
            answer = self.ask(command, **fields, **place)
            yield answer
            if answer["next"] is None:
                return
            place = {"at": answer["next"]}

    def sessions(self) -> dict[str, SessionInfo]:
        """All, in their order, with the parts put together."""
        found: dict[str, SessionInfo] = {}
        for answer in self.pages("sessions.list"):
            for each in map(SessionInfo.decode, answer["sessions"]):
                known = found.get(each.client_id)
                more = () if known is None else known.subscriptions
                found[each.client_id] = attrs.evolve(each, subscriptions=more + each.subscriptions)
        return found

    def retained(self, topic_filter: str | None = None, *, payloads: bool = False) -> list[RetainedInfo]:
        return [
            RetainedInfo.decode(each)
            for answer in self.pages("retained.list", filter=topic_filter, payloads=payloads)
            for each in answer["messages"]
        ]

    def absent(self, client_id: str, *filters: str) -> None:
        """A session whose client has left."""
        client = self.client(client_id, session_expiry=_DAY)
        if filters:
            client.subscribe(*filters, qos=1)
        client.lose()


@pytest.fixture
def world() -> Administered:
    return Administered()


def test_sessions_come_in_pages_and_in_order(world: Administered) -> None:
    """Each one once, however many there are, with those that are connected."""
    names = [f"c{number:05}" for number in range(500)]
    for name in reversed(names):
        world.absent(name)
    pages = list(world.pages("sessions.list"))
    assert max(len(page["sessions"]) for page in pages) <= 64
    assert list(world.sessions()) == ["admin", *names]


def test_what_is_known_of_a_session(world: Administered) -> None:
    """User, times as seconds since the epoch, will, subscriptions and what waits."""
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
    """No answer is long because one client has subscribed to a lot; together the parts are all."""
    world = Administered(subscriptions_per_session=5000)
    filters = [f"f/{number}/{'x' * (number % 300)}" for number in range(2000)]
    for first in range(0, 2000, 100):
        if not first:
            client = world.client("many", session_expiry=_DAY)
        client.subscribe(*filters[first : first + 100], qos=1)
    world.absent("other", "t")
    pages = list(world.pages("sessions.list"))
    assert all(sum(len(each["subscriptions"]) for each in page["sessions"]) <= 256 + 64 for page in pages)
    found = world.sessions()
    assert found["many"].subscriptions == tuple((name, 1) for name in filters)
    assert found["other"].subscriptions == (("t", 1),)
    again = [each for page in world.pages("sessions.list", client_id="many") for each in page["sessions"]]
    assert [name for each in again for name, _ in each["subscriptions"]] == filters


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 150)), max_size=40))
def test_pages_while_sessions_come_and_go(changes: list[tuple[str, int]]) -> None:
    """What is there all the time is listed exactly once, whatever happens between two pages."""
    world = Administered()
    stable = [f"s{number:03}" for number in range(150)]
    for name in stable:
        world.absent(name)
    todo = iter(changes)
    seen: list[str] = []
    for page in world.pages("sessions.list"):
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
    """Those that are there; of connected clients only by force, and then they hear why."""
    world.absent("away", "t")
    client = world.client("here", session_expiry=_DAY)
    assert world.ask("sessions.remove", client_ids=["away", "here", "nobody"]) == {
        "removed": ["away"], "missing": ["nobody"], "connected": ["here"], "rest": [],
    }  # fmt: skip
    assert list(world.sessions()) == ["admin", "here"]
    assert world.broker.usage.subscriptions == 0
    assert world.ask("sessions.remove", client_ids=["here"], force=True)["removed"] == ["here"]
    assert client.one(Disconnect).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
    assert list(world.sessions()) == ["admin"]


def test_who_removes_himself(world: Administered) -> None:
    """The answer comes first."""
    payload = json.dumps({"command": "sessions.remove", "client_ids": ["admin"], "force": True}).encode()
    world.admin.publish(CONTROL_TOPIC, payload, 1, response_topic="answers", correlation_data=b"7")
    _, answer, disconnect = world.admin.received()
    assert isinstance(answer, Publish)
    assert json.loads(answer.payload)["removed"] == ["admin"]
    assert isinstance(disconnect, Disconnect)


def test_a_removed_session_sends_its_will(world: Administered) -> None:
    """As every session that ends before its will was due (MQTT 5.0, 3.1.3.2.2)."""
    will = Will("gone", b"bye", properties=WillProperties(will_delay=500))
    world.client("c", session_expiry=1000, will=will).lose()
    witness = world.client("witness")
    witness.subscribe("gone")
    world.ask("sessions.remove", client_ids=["c"])
    assert [message.payload for message in witness.messages()] == [b"bye"]


def test_many_are_removed_in_parts(world: Administered) -> None:
    """One request ends so many sessions as take no long time, and says which are left."""
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
    """By the time since the client left; who is connected stays, whatever is asked for."""
    for name in ("old1", "old2"):
        world.absent(name)
    world.sleep(100)
    world.absent("new")
    world.client("here", session_expiry=_DAY)
    assert [page["removed"] for page in world.pages("sessions.prune", away_s=None)] == [[]]
    assert [page["removed"] for page in world.pages("sessions.prune", away_s=100)] == [["old1", "old2"]]
    for number in range(200):
        world.absent(f"x{number:03}")
    removed = [name for page in world.pages("sessions.prune", away_s=0) for name in page["removed"]]
    assert removed == ["new", *(f"x{number:03}" for number in range(200))]
    assert list(world.sessions()) == ["admin", "here"]


def test_retained_messages_come_in_pages(world: Administered) -> None:
    """All that clients have published, below $ as well, each once and in order; not what the broker says of itself."""
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
    """They are all of the message that was there at the first one, even if another one takes its place."""
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
    """In parts, and without a word to those who have subscribed."""
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


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 200_000, "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"command": 7}', "command must be a text"),
        (b"{}", "command must be a text"),
        (b'{"command": "sessions.burn"}', "there is no command 'sessions.burn'"),
        (b'{"command": "sessions.list", "at": "x"}', "at must be what an answer had as next"),
        (b'{"command": "sessions.list", "at": ["x", -1]}', "at must be"),
        (b'{"command": "sessions.list", "client_id": []}', "client_id must be a text"),
        (b'{"command": "sessions.remove"}', "client_ids must be a list of texts"),
        (b'{"command": "sessions.remove", "client_ids": [1]}', "client_ids must be a list of texts"),
        (b'{"command": "sessions.remove", "client_ids": [], "force": 1}', "force must be true or false"),
        (b'{"command": "sessions.prune", "away_s": NaN}', "away_s must be seconds"),
        (b'{"command": "sessions.prune", "away_s": -1}', "away_s must be seconds"),
        (b'{"command": "sessions.prune", "away_s": 1e999}', "away_s must be seconds"),
        (b'{"command": "retained.list", "filter": "a#"}', "filter is no topic filter"),
        (b'{"command": "retained.list", "filter": ""}', "filter is no topic filter"),
        (b'{"command": "retained.payload", "topic": "t", "offset": 1.5}', "offset must be a whole number"),
        (b'{"command": "retained.payload", "topic": "t", "offset": true}', "offset must be a whole number"),
        (b'{"command": "retained.payload", "topic": "t", "offset": ' + b"9" * 5000 + b"}", "no JSON"),
        (b'"' + b"x" * 600_000 + b'"', "a request has at most"),
    ],
)
def test_requests_that_make_no_sense(world: Administered, payload: bytes, complaint: str) -> None:
    """They are answered with what is wrong with them, and change nothing."""
    world.absent("c", "t")
    answer = world.ask_raw(payload)
    assert answer["error"] == "bad request"
    assert complaint in answer["message"]
    assert list(world.sessions()) == ["admin", "c"]
    assert world.broker.reports.take_faults() == []


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["admin", "c", "#"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
_COMMANDS = [
    "sessions.list",
    "sessions.remove",
    "sessions.prune",
    "retained.list",
    "retained.payload",
    "retained.remove",
]
_FIELDS = ["at", "client_id", "client_ids", "force", "away_s", "filter", "payloads", "topic", "offset", "topics"]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(_COMMANDS), st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=4))
def test_any_request_is_answered(command: str, fields: dict[str, Any]) -> None:
    """Whatever is in it, an answer comes, and nothing of the server fails."""
    world = Administered()
    world.absent("c", "t")
    world.admin.publish("t", b"x", 1, retain=True)
    world.admin.received()
    if fields.get("force") is True:
        fields = fields | {"client_ids": ["c"]}
    answer = world.ask(command, **fields)
    assert answer
    assert world.broker.reports.take_faults() == []


def test_requests_that_cannot_be_answered(world: Administered) -> None:
    """Without a response topic nothing happens; other topics of the server's end the connection."""
    world.absent("c")
    remove = b'{"command": "sessions.remove", "client_ids": ["c"]}'
    world.admin.publish(CONTROL_TOPIC, remove, 1)
    assert isinstance(world.admin.one(Puback), Puback)
    assert list(world.sessions()) == ["admin", "c"]
    for topic, properties, code in (
        ("$CONTROL/other", {"response_topic": "a"}, ReasonCode.NOT_AUTHORIZED),
        (CONTROL_TOPIC, {"response_topic": "a/#"}, ReasonCode.PROTOCOL_ERROR),
        (CONTROL_TOPIC, {"response_topic": COMMAND_TOPIC}, ReasonCode.TOPIC_NAME_INVALID),
        (CONTROL_TOPIC, {"response_topic": CONTROL_TOPIC}, ReasonCode.TOPIC_NAME_INVALID),
    ):
        client = world.client("rude")
        client.publish(topic, remove, 1, correlation_data=b"7", **properties)
        assert isinstance(ended := client.received()[-1], Disconnect)
        assert ended.reason_code == code
    assert list(world.sessions()) == ["admin", "c"]


@pytest.mark.parametrize(("qos", "correlation"), [(0, b"7"), (2, b"7"), (1, None)])
def test_requests_need_qos_1_and_correlation_data(world: Administered, qos: int, correlation: bytes | None) -> None:
    """Others are told so."""
    world.admin.publish(CONTROL_TOPIC, b"{}", qos, response_topic="answers", correlation_data=correlation)
    *acknowledgements, answer = world.admin.received()
    assert isinstance(answer, Publish)
    assert "QoS 1" in json.loads(answer.payload)["message"]
    assert [type(each) for each in acknowledgements] == ([] if not qos else [Pubrec] if qos == 2 else [Puback])


def test_without_the_right(world: Administered) -> None:
    """Nothing is looked at and nothing done; the answer says what is missing."""
    world.absent("c")
    world.obstacle = "because"
    for payload in (b"[" * 100_000, b'{"command": "sessions.remove", "client_ids": ["c"]}'):
        assert world.ask_raw(payload) == {"error": "not authorized", "message": "because"}
        assert [(each.client_id, each.action, each.what) for each in world.broker.reports.take_denials()] == [
            ("admin", "administer", CONTROL_TOPIC)
        ]
    world.obstacle = None
    assert list(world.sessions()) == ["admin", "c"]


def test_answers_are_for_nobody_else(world: Administered) -> None:
    """A subscriber of everything, or of that topic, sees neither the request nor the answer."""
    spy = world.client("spy")
    spy.subscribe("#", "answers", "$CONTROL/#")
    world.ask("sessions.list")
    assert spy.messages() == []


def test_a_will_administers_nothing(world: Administered) -> None:
    """A client with such a will is not let in, as mosquitto does it; nor is one carried out that was kept before."""
    world.absent("c")
    payload = b'{"command": "sessions.remove", "client_ids": ["c"]}'
    properties = WillProperties(response_topic="answers", correlation_data=b"7")
    rude = Client(world)
    rude.send(Connect("rude", will=Will(CONTROL_TOPIC, payload, 1, properties=properties)))
    assert rude.is_ended
    gone = PublishProperties(response_topic="answers", correlation_data=b"7")
    assert world.application.handle("gone", Publish(CONTROL_TOPIC, payload, 1, properties=gone), world.now) == ()
    assert list(world.sessions()) == ["admin", "c"]


def test_a_request_takes_little_time_however_much_there_is() -> None:
    """Each page of 20,000 sessions and as many retained messages costs the loop less than a turn."""
    world = Administered(retained_messages=20_000, sessions=30_000)
    for number in range(20_000):
        world.absent(f"c{number * 7919 % 20_000:05}", "t") if number % 10 == 0 else world.absent(f"d{number:05}")
    for number in range(20_000):
        world.admin.publish(f"t/{number * 7919 % 20_000}/x", b"x" * 50, 1, retain=True)
    world.admin.received()

    def cost(make: Callable[[], dict[str, Any]]) -> float:
        """The least of some, in seconds of this thread."""
        found = []
        for _ in range(7):
            payload = json.dumps(make()).encode()
            began = time.thread_time()
            world.admin.publish(CONTROL_TOPIC, payload, 1, response_topic="answers", correlation_data=b"7")
            found.append(time.thread_time() - began)
            world.admin.received()
        return min(found)

    numbers = (number for number in range(20_000) if number % 10)  # each one once
    some = partial(islice, numbers, 64)
    for make in (
        lambda: {"command": "sessions.list", "at": ["c1", 0]},
        lambda: {"command": "sessions.prune", "at": "c1", "away_s": _DAY},
        lambda: {"command": "retained.list", "filter": "t/+/x", "at": "t\x005", "payloads": True},
        lambda: {"command": "retained.list", "filter": "+/nothing/+"},
        lambda: {"command": "sessions.remove", "client_ids": [f"d{number:05}" for number in some()]},
        lambda: {"command": "retained.remove", "topics": [f"t/{number}/x" for number in some()]},
    ):
        assert cost(make) < 0.002, make()["command"]
    assert len(world.broker.sessions()) == 20_001 - 7 * 32


@pytest.mark.parametrize(
    ("options", "user", "complaint"),
    [
        ({}, None, None),
        ({"passwords": {"ann": "x"}}, "ann", "no access rules"),
        ({"passwords": {"ann": "x"}, "acl": AccessRules.parse("user ann\n  admin\n")}, "ann", None),
        (
            {"passwords": {"ann": "x"}, "acl": AccessRules.parse("user bob\n  admin\n")},
            "ann",
            "no 'admin' line for the user 'ann'",
        ),
        ({"acl": AccessRules.parse("everybody\n  read *\n")}, None, "takes a user"),
        ({"host": "0.0.0.0"}, None, "no access rules"),
        ({"authorize": lambda *_: True}, None, "no access rules"),
    ],
)
def test_who_may(options: dict[str, Any], user: str | None, complaint: str | None) -> None:
    """Whom the access rules name; without rules, whoever reaches a server that only its own machine reaches and that
    asks nobody who he is.
    """
    from statestore_client.cli.administration import RunningServer
    from statestore_client.errors import NotAuthorizedError
    from statestore_client.settings import ConnectionSettings

    with EmbeddedServer(**options) as server:
        given: dict[str, Any] = {} if user is None else {"username": user, "password": "x"}
        where = ConnectionSettings.from_url(f"mqtt://127.0.0.1:{server.port}", **given)
        with RunningServer(where) as administrator:
            if complaint is None:
                assert list(administrator.sessions()) == []
            else:
                with pytest.raises(NotAuthorizedError, match=complaint):
                    list(administrator.sessions())
