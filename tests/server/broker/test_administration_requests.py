"""Requests for administration: those that make no sense, those that cannot be answered, and whom it is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import pytest
from administered import DAY, Administered, administered_world
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_driver import Client
from support.schedules import scaled

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
from statestore_client.wire.administration import CONTROL_TOPIC
from statestore_client.wire.protocol import COMMAND_TOPIC

__all__ = ["administered_world"]


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"command": 7}', "command must be a text"),
        (b"{}", "command must be a text"),
        (b'{"command": "sessions.burn"}', "there is no command 'sessions.burn'"),
        (b'{"command": "sessions.list", "at": "x"}', "at must be the next of an earlier answer"),
        (b'{"command": "sessions.list", "at": ["x", -1]}', "at must be"),
        (b'{"command": "sessions.list", "client_id": []}', "client_id must be a text"),
        (b'{"command": "sessions.remove"}', "client_ids must be a list of texts"),
        (rb'{"command": "sessions.remove", "client_ids": ["\ud800"]}', "lone surrogate"),
        (rb'{"command": "\udfff"}', "lone surrogate"),
        (b'{"command": "sessions.remove", "client_ids": [1]}', "client_ids must be a list of texts"),
        (b'{"command": "sessions.remove", "client_ids": [], "force": 1}', "force must be true or false"),
        (b'{"command": "sessions.prune", "away_s": NaN}', "away_s must be seconds"),
        (b'{"command": "sessions.prune", "away_s": -1}', "away_s must be seconds"),
        (b'{"command": "sessions.prune", "away_s": 1e999}', "away_s must be seconds"),
        (b'{"command": "retained.list", "filter": "a#"}', "filter is not a topic filter"),
        (b'{"command": "retained.list", "filter": ""}', "filter is not a topic filter"),
        (b'{"command": "retained.payload", "topic": "t", "offset": 1.5}', "offset must be a whole number"),
        (b'{"command": "retained.payload", "topic": "t", "offset": true}', "offset must be a whole number"),
        (b'{"command": "retained.payload", "topic": "t", "offset": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'"' + b"x" * 600_000 + b'"', "a request has at most"),
    ],
)
def test_requests_that_make_no_sense(world: Administered, payload: bytes, complaint: str) -> None:
    """A request that makes no sense is answered with what is wrong with it, and changes nothing."""
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


@pytest.mark.scaled
@settings(max_examples=max(40, scaled(300, 3000)), deadline=None)
@given(st.sampled_from(_COMMANDS), st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=4))
def test_any_request_is_answered(command: str, fields: dict[str, Any]) -> None:
    """Any request is answered, whatever is in it, and the server does not fail."""
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
    """A request without a response topic is ignored, and one to another topic of the server ends the connection."""
    world.absent("c")
    remove = b'{"command": "sessions.remove", "client_ids": ["c"]}'
    world.admin.publish(CONTROL_TOPIC, remove, 1)
    assert world.admin.one(Puback).reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    (denial,) = world.broker.reports.take_denials()
    assert denial.what == "the request has no response topic: there is nowhere to answer"
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
    """A request without QoS 1 or correlation data is answered with what it lacks."""
    world.admin.publish(CONTROL_TOPIC, b"{}", qos, response_topic="answers", correlation_data=correlation)
    *acknowledgements, answer = world.admin.received()
    assert isinstance(answer, Publish)
    assert "QoS 1" in json.loads(answer.payload)["message"]
    assert [type(each) for each in acknowledgements] == ([] if not qos else [Pubrec] if qos == 2 else [Puback])


def test_without_the_right(world: Administered) -> None:
    """Without the right nothing is read or done, and the answer says what is missing."""
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
    """A subscriber of everything, or of that topic, gets neither the request nor the answer."""
    spy = world.client("spy")
    spy.subscribe("#", "answers", "$CONTROL/#")
    world.ask("sessions.list")
    assert spy.messages() == []


def test_a_will_administers_nothing(world: Administered) -> None:
    """A client whose will is such a request is refused, as by mosquitto, and a will that was kept before is not
    executed."""
    world.absent("c")
    payload = b'{"command": "sessions.remove", "client_ids": ["c"]}'
    properties = WillProperties(response_topic="answers", correlation_data=b"7")
    rude = Client(world)
    rude.send(Connect("rude", will=Will(CONTROL_TOPIC, payload, 1, properties=properties)))
    assert rude.is_ended
    gone = PublishProperties(response_topic="answers", correlation_data=b"7")
    assert world.application.handle("gone", Publish(CONTROL_TOPIC, payload, 1, properties=gone), world.now) == ()
    assert list(world.sessions()) == ["admin", "c"]


@pytest.mark.ci
def test_a_request_takes_little_time_however_much_there_is() -> None:
    """Each page of 20,000 sessions and as many retained messages takes less than a turn of the loop."""
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
        lambda: {"command": "sessions.prune", "at": "c1", "away_s": DAY},
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
    """Administration is for users whom the rules name; without rules, for all clients of a local server that asks
    nobody's name."""
    from statestore_client.cli.data import RunningServer
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
