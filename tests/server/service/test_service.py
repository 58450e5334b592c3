"""The state store as an application of the broker: PUBLISH in, response out."""

from __future__ import annotations

import time
from typing import Any

import pytest
from service_driver import (
    AHEAD,
    COMMAND_TOPIC,
    DEL,
    GET,
    NOTIFY_TOPIC,
    OBSERVE,
    RESPONSE_TOPIC,
    SCAN,
    SET,
    SET_NX,
    STOP,
    TS,
    VDEL,
    WALL,
    Server,
    handle,
    routed,
    version,
)
from support.broker_driver import World
from support.durable_broker import DurableWorld

from statestore_client.mqtt.packets import Disconnect, Publish, PublishProperties, ReasonCode, Will
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.server.broker.application import Applications, DisconnectClient, Drop, Route
from statestore_client.server.store import StoreLimits
from statestore_client.wire.commands import Get, Scan
from statestore_client.wire.protocol import Dialect, notification_topic

#: Of the store with the key of zeros; the official SDKs ignore it.
STORE = ("statestore-id", "79802c715d67a147")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def document() -> Server:
    return Server(Dialect.DOCUMENT)


# -- responses --------------------------------------------------------------------------------------------------------


def test_it_is_an_application(server: Server) -> None:
    """The state store is the application of its request topic and no other."""
    applications = Applications()
    applications.add(server.service)
    assert applications.find(COMMAND_TOPIC) is server.service
    assert applications.find(COMMAND_TOPIC + "/response") is None
    assert applications.find(COMMAND_TOPIC.lower()) is None


def test_the_response_in_the_services_dialect(server: Server) -> None:
    """In the service's dialect the response has every property that the official SDKs insist on."""
    (effect,) = server.request(SET, correlation=b"0123456789abcdef")
    assert effect == Route(
        Publish(
            RESPONSE_TOPIC,
            b"+OK\r\n",
            qos=1,
            properties=PublishProperties(
                message_expiry=10,
                content_type="application/octet-stream",
                correlation_data=b"0123456789abcdef",
                user_properties=(
                    ("__stat", "200"),
                    ("__protVer", "1.0"),
                    STORE,
                    ("__ts", "001696374425000:00001:StateStore"),
                ),
            ),
        )
    )


def test_the_response_in_the_documents_dialect(document: Server) -> None:
    """In the document's dialect ``__ts`` is unpadded, and there is no property that the document does not have."""
    (effect,) = document.request(SET, correlation=b"0123456789abcdef")
    message = routed(effect)
    assert message.topic == RESPONSE_TOPIC
    assert message.payload == b"+OK\r\n"
    assert message.properties.correlation_data == b"0123456789abcdef"
    assert message.properties.user_properties == (("__ts", "1696374425000:1:StateStore"),)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("name", [b"SET", b"KEYNOTIFY"])
def test_a_million_empty_words_cost_nothing(dialect: Dialect, name: bytes) -> None:
    """A request of a million empty words is refused within milliseconds of processor, in both dialects."""
    server = Server(dialect)
    payload = b"*1048570\r\n$%d\r\n%b\r\n" % (len(name), name) + b"$0\r\n\r\n" * 1_048_569
    times = []
    for _ in range(3):
        begin = time.process_time()
        answer = server.reply(payload)
        times.append(time.process_time() - begin)
        assert answer.payload.startswith(b"-ERR wrong number of arguments")
    assert min(times) < 0.05


@pytest.mark.parametrize("dialect", Dialect)
def test_a_get_returns_the_version_of_the_set(dialect: Dialect) -> None:
    """GET returns the version without a timestamp in the request, as in the document, and with one, as the SDKs send
    it."""
    server = Server(dialect)
    stored = version(server.reply(SET))
    for ts in (None, TS):
        found = server.reply(GET, ts=ts)
        assert found.payload == b"$3\r\nabc\r\n"
        assert version(found) == stored


@pytest.mark.parametrize(
    ("payload", "answer", "versioned"),
    [
        (GET, b"$-1\r\n", False),
        (DEL, b":0\r\n", False),
        (VDEL, b":0\r\n", False),
        (OBSERVE, b"+OK\r\n", False),
        (STOP, b":0\r\n", False),
        (SCAN, b"*1\r\n*0\r\n", False),
        (SET, b"+OK\r\n", True),
        (SET_NX, b"+OK\r\n", True),
    ],
)
def test_answers_while_the_key_is_missing(server: Server, payload: bytes, answer: bytes, *, versioned: bool) -> None:
    """For a missing key the answer has a status, and a version only if one exists."""
    message = server.reply(payload)
    assert message.payload == answer
    assert (version(message) is not None) is versioned
    assert ("__stat", "200") in message.properties.user_properties


@pytest.mark.parametrize(
    ("payload", "service", "letter"),
    [
        (GET, b"$3\r\nabc\r\n", b"$3\r\nabc\r\n"),
        (SET_NX, b":-1\r\n", b"-1\r\n"),
        (VDEL, b":-1\r\n", b"-1\r\n"),
        (DEL, b":1\r\n", b":1\r\n"),
    ],
)
def test_answers_while_the_key_exists(payload: bytes, service: bytes, letter: bytes) -> None:
    """For an existing key every answer has a version, "not applied" included, as the .NET SDK insists."""
    for dialect, answer in ((Dialect.SERVICE, service), (Dialect.DOCUMENT, letter)):
        server = Server(dialect)
        server.request(SET)
        message = server.reply(payload)
        assert message.payload == answer
        assert version(message) is not None


@pytest.mark.parametrize("dialect", Dialect)
def test_a_response_is_written_as_its_properties_say(dialect: Dialect) -> None:
    """The encoded bytes beside a response are those of its properties, also for a repeated request and one that lives
    on."""
    server = Server(dialect)
    for expiry in (10, None, 0xFFFF_FFFF):
        for correlation in (b"c", b"0123456789abcdef", b"-" * 3_000):
            for _ in range(2):
                message = routed(server.request(SET, correlation=correlation, expiry=expiry)[0])
                assert message.block == layouts.PUBLISH.encode(message.properties)
                assert message.properties.correlation_data == correlation
                assert message.properties.message_expiry == expiry


def test_responses_live_as_long_as_their_request(server: Server) -> None:
    """A response has the request's message expiry, or none."""
    assert routed(server.request(GET, expiry=7)[0]).properties.message_expiry == 7
    assert routed(server.request(GET, expiry=None)[0]).properties.message_expiry is None


def test_the_next_fencing_token_is_the_locks_version(server: Server) -> None:
    """The version of a lock is its next fencing token ("Client1 uses the __ts property unmodified as the basis of the
    __ft property"), and renewing keeps it valid."""
    token = version(server.reply(b"*4\r\n$3\r\nSET\r\n$1\r\nL\r\n$1\r\n1\r\n$3\r\nNEX\r\n"))
    assert server.reply(SET, ft=token).payload == b"+OK\r\n"
    assert server.reply(SET, ft=token).payload == b"+OK\r\n"
    assert server.reply(SET).payload == b"-ERR a fencing token is required for this request\r\n"


# -- refusals ---------------------------------------------------------------------------------------------------------

REFUSALS: list[tuple[bytes, str | None, str | None, str]] = [
    (
        SET,
        AHEAD,
        None,
        "the request timestamp is too far in the future; "
        "ensure that the client and broker system clocks are synchronized",
    ),
    (SET, TS, None, "a fencing token is required for this request"),
    (
        SET,
        TS,
        AHEAD,
        "the request fencing token timestamp is too far in the future; "
        "ensure that the client and broker system clocks are synchronized",
    ),
    (
        DEL,
        TS,
        f"{WALL - 1}:0:CLIENT",
        "the request fencing token is a lower version than the fencing token protecting the resource",
    ),
    (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\ny\r\n", TS, None, "the quota has been exceeded"),
    (b"*2\r\n$3\r\nGET\r\n$9\r\nx\r\n", TS, None, "syntax error"),
    (SCAN, TS, None, "not authorized"),
    (b"*2\r\n$4\r\nPING\r\n$1\r\nx\r\n", TS, None, "unknown command"),
    (b"*1\r\n$3\r\nGET\r\n", TS, None, "wrong number of arguments"),
    (SET, None, None, "missing timestamp"),
    (SET, "NotValid", None, "malformed timestamp"),
    (b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n", TS, None, "the key length is zero"),
]


@pytest.mark.parametrize(("payload", "ts", "ft", "text"), REFUSALS)
def test_each_error_string(payload: bytes, ts: str | None, ft: str | None, text: str) -> None:
    """Each of the twelve error texts has status 200 and no version in both dialects, and CRLF in the service's only."""
    for dialect in Dialect:
        server = Server(dialect, limits=StoreLimits(max_keys=1), forbidden=Scan)
        server.request(SET, ft=f"{WALL}:0:CLIENT")
        message = server.reply(payload, ts=ts, ft=ft)
        if dialect is Dialect.SERVICE:
            assert message.payload == f"-ERR {text}\r\n".encode()
            told = (("__stMsg", "keys: at most 1; --max-keys raises that"),) if "quota" in text else ()
            assert message.properties.user_properties == (("__stat", "200"), ("__protVer", "1.0"), STORE, *told)
        else:
            letter = text.replace("lower version than", "lower version that")
            assert message.payload == f"-ERR {letter}".encode()
            assert message.properties.user_properties == ()


def test_keynotify_refusals_have_a_colon_in_the_document(document: Server) -> None:
    """The document's dialect refuses a KEYNOTIFY as ``-ERR: <DESCRIPTION OF ERROR><CR><LF>``."""
    message = document.reply(b"*2\r\n$9\r\nKEYNOTIFY\r\n$0\r\n\r\n")
    assert message.payload == b"-ERR: the key length is zero\r\n"


@pytest.mark.parametrize("verb", [b"KEYNOTIFY", b"keynotify"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (b"", "wrong number of arguments"),
        (b"$1\r\nk\r\n$3\r\nget\r\n", "syntax error"),
        (b"$1\r\nk\r\n$4\r\nstop\r\n", "syntax error"),
        (b"$1\r\nk\r\n$4\r\nSTOP\r\n$4\r\nSTOP\r\n", "wrong number of arguments"),
        (b"$-1\r\n", "syntax error"),
        (b":7\r\n", "syntax error"),
    ],
)
def test_a_keynotify_that_cannot_be_read_is_refused_as_any_other(
    server: Server, document: Server, verb: bytes, arguments: bytes, text: str
) -> None:
    """A KEYNOTIFY without a key, with an unknown option, or with a key that is not text is refused in the same form."""
    count = 1 + arguments.count(b"$") + arguments.count(b":")
    payload = b"*%d\r\n$9\r\n%b\r\n%b" % (count, verb, arguments)
    assert document.reply(payload).payload == f"-ERR: {text}\r\n".encode()
    if verb.isupper():
        assert server.reply(payload).payload == f"-ERR {text}\r\n".encode()


def test_a_keynotify_that_is_no_request_is_refused_in_the_documents_words(server: Server, document: Server) -> None:
    """A KEYNOTIFY with another QoS or without correlation data has that form too; a payload that is not RESP3 does
    not."""
    for asked in ({"qos": 0}, {"correlation_data": None}):
        assert routed(handle(document, payload=OBSERVE, **asked)[0]).payload == b"-ERR: syntax error\r\n"
        assert routed(handle(document, payload=SET, **asked)[0]).payload == b"-ERR syntax error"
        assert routed(handle(server, payload=OBSERVE, **asked)[0]).payload == b"-ERR syntax error\r\n"
    assert document.reply(OBSERVE[:-3]).payload == b"-ERR syntax error"


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4", "-1:0:a", "1:x:a", "1:0:", "9" * 400 + ":0:a"])
def test_malformed_timestamps(server: Server, text: str) -> None:
    """A malformed ``__ts`` or ``__ft`` is refused for every command; an empty node is malformed as well."""
    for payload in (SET, GET, DEL, OBSERVE):
        assert server.reply(payload, ts=text).payload == b"-ERR malformed timestamp\r\n"
        assert server.reply(payload, ft=text).payload == b"-ERR malformed timestamp\r\n"


def test_the_first_of_repeated_properties_counts(server: Server) -> None:
    """Of a repeated user property the first one counts."""
    properties = PublishProperties(
        response_topic=RESPONSE_TOPIC, correlation_data=b"c", user_properties=(("__ts", TS), ("__ts", "NotValid"))
    )
    (effect,) = server.service.handle("c", Publish(COMMAND_TOPIC, SET, qos=1, properties=properties), server.now)
    assert routed(effect).payload == b"+OK\r\n"


def test_a_payload_error_is_told_before_a_timestamp_error(server: Server) -> None:
    """An error of the payload is reported before one of the timestamp."""
    assert server.reply(b"nonsense", ts="NotValid").payload == b"-ERR syntax error\r\n"


def test_authorization_comes_before_execution() -> None:
    """A forbidden command is not executed, and others are."""
    server = Server(forbidden=Get)
    assert server.reply(SET).payload == b"+OK\r\n"
    assert server.reply(GET).payload == b"-ERR not authorized\r\n"


# -- requests that are none -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [COMMAND_TOPIC, NOTIFY_TOPIC, NOTIFY_TOPIC[:58], "$SYS/broker/uptime"])
def test_forbidden_response_topics_disconnect(server: Server, topic: str) -> None:
    """A forbidden response topic disconnects ("The state store disconnects MQTT clients that use an invalid response
    topic.") and executes nothing."""
    (effect,) = handle(server, response_topic=topic)
    assert isinstance(effect, DisconnectClient)
    assert (effect.client_id, effect.reason_code) == ("client-id1", 0x90)
    assert server.reply(GET).payload == b"$-1\r\n"


@pytest.mark.parametrize("topic", ["", "clients/+/x", "clients/#"])
def test_response_topics_with_wildcards_disconnect(server: Server, topic: str) -> None:
    """A response topic with wildcards, a protocol error of MQTT itself, disconnects."""
    (effect,) = handle(server, response_topic=topic)
    assert isinstance(effect, DisconnectClient)
    assert effect.reason_code == 0x82


@pytest.mark.parametrize(
    "topic",
    [
        "clients/63/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response",  # Go
        "clients/c/services/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response",  # Rust
        "clients/c/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke",  # .NET
        "anything/else",
    ],
)
def test_response_topics_of_the_sdks(server: Server, topic: str) -> None:
    """The response topics of the official SDKs, none of which is the document's recommended one, are all answered."""
    (effect,) = handle(server, response_topic=topic)
    assert routed(effect).topic == topic


def test_requests_without_a_response_topic_are_dropped(server: Server) -> None:
    """A request without a response topic, as of an MQTT 3.1.1 client, is dropped."""
    (effect,) = handle(server, response_topic=None)
    assert effect == Drop("client-id1", "the request has no response topic: there is nowhere to answer")
    assert server.service.counters["dropped.no_response_topic"] == 1
    assert server.reply(GET).payload == b"$-1\r\n"


@pytest.mark.parametrize("qos", [0, 2])
def test_requests_need_qos_1(server: Server, document: Server, qos: int) -> None:
    """A request with another QoS than 1 is answered with an error and not executed."""
    (effect,) = handle(server, qos=qos)
    message = routed(effect)
    assert message.payload == b"-ERR syntax error\r\n"
    assert dict(message.properties.user_properties) == {
        "__stat": "400",
        "__protVer": "1.0",
        "__stMsg": "requests need QoS 1 and correlation data",
    }
    assert server.reply(GET).payload == b"$-1\r\n"
    assert routed(handle(document, qos=qos)[0]).properties.user_properties == ()


def test_requests_need_correlation_data(server: Server) -> None:
    """A request needs correlation data, which may be empty."""
    assert routed(handle(server, correlation_data=None)[0]).payload == b"-ERR syntax error\r\n"
    assert routed(handle(server, correlation_data=b"")[0]).payload == b"+OK\r\n"


def test_expired_requests_are_dropped(server: Server) -> None:
    """An expired request is dropped."""
    (effect,) = server.request(SET, expiry=0)
    assert effect == Drop("client-id1", "the request has expired: its message expiry is 0")
    assert server.service.counters["dropped.expired"] == 1
    assert server.reply(GET).payload == b"$-1\r\n"


# -- notification topics are the server's ------------------------------------------------------------------------------

_TRUE = notification_topic("victim", b"k")
_BELOW = _TRUE.rpartition("/")[0]
#: Malformed in ways that a subscription with ``+`` or ``#`` does not mind.
TOPICS = [
    _TRUE,
    f"{_BELOW}/zz",
    f"{_BELOW}/5",
    f"{_BELOW}/",
    _BELOW,
    f"{_TRUE}/more",
    _TRUE.replace("/command/", "/Command/"),
    notification_topic("x", b"k").replace("/78/", "/FF/"),  # no UTF-8, so no client id
    notification_topic("x", b"k").replace("/78/", "//"),
]
_FILTERS = (f"{_BELOW}/+", "clients/statestore/#", f"$share/g/{_BELOW}/+")


@pytest.fixture
def world() -> World:
    return World(application=Server().service)


def _victim(world: World) -> Any:
    victim = world.client("victim")
    victim.subscribe(*_FILTERS, qos=1)
    return victim


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_counterfeit_ends_its_connection(world: World, topic: str, qos: int) -> None:
    """A counterfeit notification, well-formed or not, ends its connection and is not retained."""
    victim, forger = _victim(world), world.client("forger")
    forger.publish(topic, b"forged", qos, retain=True)
    *_, last = forger.received()
    assert (type(last), last.reason_code) == (Disconnect, ReasonCode.NOT_AUTHORIZED)
    assert (victim.messages(), world.broker.usage.retained_messages) == ([], 0)


@pytest.mark.parametrize("topic", TOPICS)
def test_no_detour_leads_to_notification_topics(world: World, topic: str) -> None:
    """A will, a topic alias, the topic of a share and a response topic cannot be used to publish on a notification
    topic."""
    victim = _victim(world)
    world.client("dying", will=Will(topic, b"forged", 1, retain=True)).lose()
    for name, packet in {
        "alias": Publish(topic, b"forged", properties=PublishProperties(topic_alias=1)),
        "share": Publish(f"$share/g/{topic}", b"forged"),
        "request": Publish(
            COMMAND_TOPIC,
            b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
            1,
            packet_id=1,
            properties=PublishProperties(response_topic=topic, correlation_data=b"1"),
        ),
    }.items():
        forger = world.client(name)
        forger.send(packet)
        assert forger.is_ended
    assert (victim.messages(), world.broker.usage.retained_messages) == ([], 0)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_counterfeit_that_an_earlier_release_retained_is_gone(topic: str) -> None:
    """A counterfeit that an earlier release retained is removed from memory and disk at the restart."""
    earlier = DurableWorld()
    earlier.client("forger", session_expiry=0).publish(topic, b"forged", 1, retain=True)
    earlier.work()
    assert earlier.storage.count() == {"retained": 1}
    world = DurableWorld(application=Server().service)
    world.storage = earlier.storage
    world.crash()
    assert world.broker.usage.retained_messages == 0
    world.commit()
    assert world.storage.count() == {}
