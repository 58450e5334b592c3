"""Values that a program gives the server: what cannot work is refused where it is given, and the message says why."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import pytest

from statestore_client.errors import InvalidArgumentError
from statestore_client.server import AccessRules, BrokerLimits, EmbeddedServer, Hooks, ServerTls, StoreLimits
from statestore_client.server.runtime.settings import Endpoints
from statestore_client.server.store.keyspace import ScanLimits

KINDS = (BrokerLimits, StoreLimits, ScanLimits, Endpoints)
FIELDS = [(kind, field) for kind in KINDS for field in attrs.fields(kind)]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=[f"{kind.__name__}.{field.name}" for kind, field in FIELDS])
def test_every_field_is_looked_at(kind: Any, field: attrs.Attribute[Any]) -> None:
    """Every field refuses an object, by name, and a number is neither a bool, a text nor not-a-number."""
    wrong: list[Any] = [object()]
    if field.type in ("int", "int | None", "float"):
        wrong += [True, "5", math.nan, math.inf, -1]
    if field.type == "bool":
        wrong += [1, "no"]
    if field.type in ("str", "str | None"):
        wrong += [5, b"text"]
    for value in wrong:
        with pytest.raises(InvalidArgumentError, match=field.name):
            kind(**{field.name: value})
    assert kind(**{field.name: getattr(kind(), field.name)}) == kind()


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("packet_bytes", 1, 268_435_455),  # MQTT 5.0, 2.1.4
        ("receive_maximum", 1, 65_535),  # 3.2.2.3.3
        ("usual_receive_maximum", 1, 65_535),
        ("in_flight", 1, 65_535),  # packet identifiers: 2.2.1
        ("topic_alias_maximum", 0, 65_535),  # 3.2.2.3.8
        ("keep_alive_s", 0, 65_535),  # 3.2.2.3.14
        ("session_expiry_s", 0, 0xFFFF_FFFF),  # 3.2.2.3.2
        ("client_id_bytes", 23, 65_535),  # MQTT-3.1.3-5; 1.5.4
        ("maximum_qos", 0, 2),
    ],
)
def test_what_mqtt_can_say(field: str, low: int, high: int) -> None:
    """A limit that CONNACK could not announce, or that the standard forbids, is refused."""
    for number in (low, high):
        assert getattr(BrokerLimits(**{field: number}), field) == number
    for number in (low - 1, high + 1):
        with pytest.raises(InvalidArgumentError, match=f"{field} must be a whole number from {low} to {high}, not"):
            BrokerLimits(**{field: number})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dialect": "doc"}, "dialect must be 'service' or 'document', not 'doc'"),
        ({"broker_limits": {"maximum_qos": 1}}, "broker_limits must be BrokerLimits, not dict"),
        ({"store_limits": {}}, "store_limits must be StoreLimits, not dict"),
        ({"tls": "server.crt"}, "tls must be ServerTls or SSLContext, not str"),
        ({"port": -1}, "port must be a whole number from 0 to 65535, not -1"),
        ({"port": "1883"}, "port must be a whole number from 0 to 65535, not '1883'"),
        ({"ws_port": 65_536}, "ws_port must be a whole number from 0 to 65535, not 65536"),
        ({"host": ""}, "host is empty; 0.0.0.0 and :: are all addresses"),
        ({"ws_origins": "https://a.example"}, 'ws_origins must be a list, like ."https://host".'),
        ({"ws_origins": ["a.example"]}, "'a.example' is neither like https://host"),
        ({"ws_origins": ["https://a.example"]}, "ws_origins need a ws_port or a wss_port"),
        ({"unix_socket": ""}, "unix_socket is empty"),
        ({"unix_socket": b"sock"}, "unix_socket must be a path, not bytes"),
        ({"unix_socket": "a\0b"}, "unix_socket must be a path"),
        ({"data": ""}, "data is empty"),
        ({"data": 5}, "data must be a path, not int"),
        ({"data": Path("a\0b")}, "data must be a path, not 'a"),
        ({"data": Path}, "data must be a path, not type"),
        ({"passwords": ["user"]}, "passwords must be a path or a dictionary, not list"),
        ({"acl": {"user": "#"}}, "acl must be a path or AccessRules, not dict"),
        ({"authorize": True}, "authorize must be a function, not bool"),
        ({"token_verifier": "token"}, "token_verifier must be a function, not str"),
        ({"allow_anonymous": "no"}, "allow_anonymous must be True or False, not 'no'"),
        ({"faults": 1}, "faults must be True or False, not 1"),
        ({"hooks": {}}, "hooks must be Hooks, not dict"),
        ({"record_messages": -1}, "record_messages must be a whole number of at least 0, not -1"),
        ({"record_messages": True}, "record_messages must be a whole number of at least 0, not True"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_cannot_be_used(options: dict[str, Any], complaint: str) -> None:
    """Unusable arguments are refused in words where they are given."""
    with pytest.raises(InvalidArgumentError, match=complaint):
        EmbeddedServer(**options)


def test_passwords_that_are_none() -> None:
    """Names and passwords are texts, and the message about others shows no password."""
    for passwords in ({"user": b"secret"}, {5: "secret"}):
        with pytest.raises(InvalidArgumentError, match="must be a text") as caught:
            EmbeddedServer(passwords=_any(passwords)).start()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("filters", ["secret/#", 5, None, [5], ["a#"], [""]])
def test_filters_that_are_none(filters: Any) -> None:
    """A filter list given as one text is refused: of its characters ``#`` would refuse everything."""
    with pytest.raises(InvalidArgumentError, match="filter"):
        BrokerLimits(refused_filters=filters)


@pytest.mark.parametrize(
    "message",
    [
        {"topic": 5},
        {"topic": "a/#"},
        {"payload": 5},
        {"payload": None},
        {"qos": 3},
        {"qos": "1"},
        {"retain": "no"},
        {"message_expiry": "60"},
        {"message_expiry": -1},
        {"content_type": 1},
        {"response_topic": 1},
        {"correlation_data": "text"},
        {"user_properties": {"name": "value"}},
        {"user_properties": [("name", 1)]},
        {"user_properties": 5},
    ],
    ids=str,
)
def test_messages_that_cannot_be(message: dict[str, Any]) -> None:
    """An impossible message is refused, and nobody gets it."""
    with EmbeddedServer() as server:
        with pytest.raises(InvalidArgumentError):
            server.publish(**{"topic": "t", **message})
        assert server.messages == []
        server.publish("t", bytearray(b"x"), user_properties=iter([("name", "value")]))
        assert server.wait_for("t").payload == b"x"


def test_parts_of_a_server() -> None:
    """Certificates, rules and functions are checked when they are given."""
    for options in (
        {"cert_file": 5, "key_file": "k"},
        {"cert_file": "", "key_file": "k"},
        {"cert_file": None, "key_file": "k"},
        {"cert_file": "c", "key_file": "k", "ca_file": "a\0b"},
        {"cert_file": "c", "key_file": "k", "key_password_file": ""},
    ):
        with pytest.raises(InvalidArgumentError, match="_file"):
            ServerTls(**_any(options))
    assert ServerTls(cert_file=_any(Path("c")), key_file="k").ca_file is None
    with pytest.raises(InvalidArgumentError, match="scan must be given, not None"):
        StoreLimits(scan=_any(None))
    with pytest.raises(InvalidArgumentError, match="access rules must be a text"):
        AccessRules.parse(_any(b"everybody"))
    with pytest.raises(InvalidArgumentError, match="on_connect must be a function, not str"):
        Hooks(on_connect=_any("print"))
    hooks = Hooks()
    with pytest.raises(InvalidArgumentError, match="on_publish must be a function"):
        hooks.on_publish = _any(5)


def test_controls_with_wrong_values() -> None:
    """Wrong filters, times and packets of the controls are refused, and a negative time-out is over at once."""
    with EmbeddedServer(faults=True, hooks=Hooks()) as server:
        faults, anything = server.faults, _any
        for attempt in (
            lambda: server.wait_for(anything(5), 0.1),
            lambda: server.wait_for("t", anything("1")),
            lambda: server.clock.advance(anything("60")),
            lambda: server.clock.step_wall(anything(None)),
            lambda: server.restart(keep_state=anything(1)),
            lambda: faults.drop(anything(None)),
            lambda: faults.drop("PUBLISH", reason_code=anything("0x87")),
            lambda: faults.drop("PUBLISH", client_id=anything(5)),
            lambda: faults.drop("PUBLISH", topic=anything(5)),
            lambda: faults.drop("PUBLISH", skip=anything("1")),
            lambda: faults.drop("PUBLISH", times=anything(1.5)),
            lambda: faults.withhold("publish"),
            lambda: faults.duplicate("PUBLICH"),
            lambda: faults.delay("PUBLISH", math.nan),
            lambda: faults.delay("PUBLISH", math.inf),
            lambda: faults.delay("PUBLISH", anything("1")),
            lambda: faults.refuse("PUBLISH", anything("0x87")),
            lambda: faults.refuse("PUBLISH", 300),
            lambda: faults.cut(anything(1.5)),
            lambda: faults.cut(1, "PUBLICH"),
        ):
            with pytest.raises(InvalidArgumentError):
                attempt()
        with pytest.raises(TimeoutError, match="no message"):
            server.wait_for("t", -1)


def _any(value: object) -> Any:
    """What no type checker would let pass."""
    return value
