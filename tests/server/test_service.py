"""The state store as an application of the broker: PUBLISH in, effects out."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from statestore_client.mqtt.packets.types import Publish, PublishProperties
from statestore_client.server.broker.application import Application, Deliver, Effect, Kick, Route, Series
from statestore_client.server.runtime.responses import ResponseCacheLimits
from statestore_client.server.runtime.service import StateStoreService
from statestore_client.server.store import StateStore, StoreLimits
from statestore_client.wire.commands import Command, Get, Scan
from statestore_client.wire.dialect import Dialect
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COMMAND_TOPIC = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
RESPONSE_TOPIC = "clients/client-id1/services/statestore/_any_/command/invoke/response"
NOTIFY_TOPIC = (
    "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/636C69656E742D696431/command/notify/534F4D454B4559"
)
WALL = 1_696_374_425_000
TS = "1696374425000:0:CLIENT"

SET = b"*3\r\n$3\r\nSET\r\n$7\r\nSOMEKEY\r\n$3\r\nabc\r\n"
SET_NX = b"*4\r\n$3\r\nSET\r\n$7\r\nSOMEKEY\r\n$3\r\nabc\r\n$2\r\nNX\r\n"
SET_PX = b"*5\r\n$3\r\nSET\r\n$7\r\nSOMEKEY\r\n$3\r\nabc\r\n$2\r\nPX\r\n$4\r\n1000\r\n"
GET = b"*2\r\n$3\r\nGET\r\n$7\r\nSOMEKEY\r\n"
DEL = b"*2\r\n$3\r\nDEL\r\n$7\r\nSOMEKEY\r\n"
VDEL = b"*3\r\n$4\r\nVDEL\r\n$7\r\nSOMEKEY\r\n$3\r\nxyz\r\n"
OBSERVE = b"*2\r\n$9\r\nKEYNOTIFY\r\n$7\r\nSOMEKEY\r\n"
STOP = b"*3\r\n$9\r\nKEYNOTIFY\r\n$7\r\nSOMEKEY\r\n$4\r\nSTOP\r\n"
SCAN = b"*2\r\n$4\r\nSCAN\r\n$5\r\nSOME*\r\n"


class Server:
    """A service with a clock that the test moves. Every request has new correlation data unless told otherwise."""

    def __init__(
        self,
        dialect: Dialect = Dialect.SERVICE,
        *,
        limits: StoreLimits | None = None,
        cache: ResponseCacheLimits | None = None,
        forbidden: type[Command] | None = None,
    ) -> None:
        clock = HybridLogicalClock("StateStore", guard=nullcontext())
        store = StateStore(clock=clock, limits=limits or StoreLimits(), dialect=dialect)
        self.service = StateStoreService(
            store,
            dialect=dialect,
            authorize=None if forbidden is None else lambda _, command: not isinstance(command, forbidden),
            cache_limits=cache or ResponseCacheLimits(),
        )
        self.now = Instant(100.0, WALL)
        self.requests = 0

    def advance(self, seconds: float) -> None:
        self.now = Instant(self.now.monotonic + seconds, self.now.wall_ms + int(seconds * 1000))

    def request(
        self,
        payload: bytes,
        *,
        ts: str | None = TS,
        ft: str | None = None,
        correlation: bytes | None = None,
        client: str = "client-id1",
        expiry: int | None = 10,
    ) -> Sequence[Effect]:
        self.requests += 1
        extra = tuple((name, text) for name, text in (("__ts", ts), ("__ft", ft)) if text is not None)
        properties = PublishProperties(
            message_expiry=expiry,
            response_topic=RESPONSE_TOPIC,
            correlation_data=correlation or self.requests.to_bytes(16),
            user_properties=(("__srcId", client), ("$partition", client), *extra),
        )
        message = Publish(COMMAND_TOPIC, payload, qos=1, properties=properties)
        return one_by_one(self.service.handle(client, message, self.now))

    def reply(
        self, payload: bytes, *, ts: str | None = TS, ft: str | None = None, client: str = "client-id1"
    ) -> Publish:
        """The response of a request that causes nothing else."""
        (effect,) = self.request(payload, ts=ts, ft=ft, client=client)
        return routed(effect)


def one_by_one(effects: Iterable[Effect]) -> list[Effect]:
    """With what the series among them consist of."""
    return [each for effect in effects for each in (effect.effects if isinstance(effect, Series) else (effect,))]


def routed(effect: Effect) -> Publish:
    assert isinstance(effect, Route)
    return effect.message


def version(message: Publish) -> str | None:
    return dict(message.properties.user_properties).get("__ts")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def document() -> Server:
    return Server(Dialect.DOCUMENT)


# -- responses --------------------------------------------------------------------------------------------------------


def test_it_is_an_application(server: Server) -> None:
    """Of the system topic and no other."""
    application: Application = server.service
    assert application.handles(COMMAND_TOPIC)
    assert not application.handles(COMMAND_TOPIC + "/response")
    assert not application.handles(COMMAND_TOPIC.lower())


def test_the_response_in_the_services_dialect(server: Server) -> None:
    """Every property that the official SDKs insist on."""
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
                    ("__ts", "001696374425000:00001:StateStore"),
                ),
            ),
        )
    )


def test_the_response_in_the_documents_dialect(document: Server) -> None:
    """``__ts`` unpadded, and nothing that the document does not know."""
    (effect,) = document.request(SET, correlation=b"0123456789abcdef")
    message = routed(effect)
    assert message.topic == RESPONSE_TOPIC
    assert message.payload == b"+OK\r\n"
    assert message.properties.correlation_data == b"0123456789abcdef"
    assert message.properties.user_properties == (("__ts", "1696374425000:1:StateStore"),)


@pytest.mark.parametrize("dialect", Dialect)
def test_a_get_returns_the_version_of_the_set(dialect: Dialect) -> None:
    """Without a timestamp in the request, as the document has it, and with one, as the SDKs send it."""
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
    """A version only where one exists; a status always."""
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
    """All with a version, "not applied" included: the .NET SDK insists on it."""
    for dialect, answer in ((Dialect.SERVICE, service), (Dialect.DOCUMENT, letter)):
        server = Server(dialect)
        server.request(SET)
        message = server.reply(payload)
        assert message.payload == answer
        assert version(message) is not None


def test_responses_live_as_long_as_their_request(server: Server) -> None:
    """The request's message expiry, or none."""
    assert routed(server.request(GET, expiry=7)[0]).properties.message_expiry == 7
    assert routed(server.request(GET, expiry=None)[0]).properties.message_expiry is None


def test_the_next_fencing_token_is_the_locks_version(server: Server) -> None:
    """ "Client1 uses the __ts property unmodified as the basis of the __ft property"; renewing keeps it valid."""
    token = version(server.reply(b"*4\r\n$3\r\nSET\r\n$1\r\nL\r\n$1\r\n1\r\n$3\r\nNEX\r\n"))
    assert server.reply(SET, ft=token).payload == b"+OK\r\n"
    assert server.reply(SET, ft=token).payload == b"+OK\r\n"
    assert server.reply(SET).payload == b"-ERR a fencing token is required for this request\r\n"


# -- refusals ---------------------------------------------------------------------------------------------------------

SKEW_S = 61
AHEAD = f"{WALL + SKEW_S * 1000}:0:CLIENT"

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
    """All twelve, in both dialects: with status 200 and no version, with CRLF in the service's dialect only."""
    for dialect in Dialect:
        server = Server(dialect, limits=StoreLimits(max_keys=1), forbidden=Scan)
        server.request(SET, ft=f"{WALL}:0:CLIENT")
        message = server.reply(payload, ts=ts, ft=ft)
        if dialect is Dialect.SERVICE:
            assert message.payload == f"-ERR {text}\r\n".encode()
            assert message.properties.user_properties == (("__stat", "200"), ("__protVer", "1.0"))
        else:
            letter = text.replace("lower version than", "lower version that")
            assert message.payload == f"-ERR {letter}".encode()
            assert message.properties.user_properties == ()


def test_keynotify_refusals_have_a_colon_in_the_document(document: Server) -> None:
    """``-ERR: <DESCRIPTION OF ERROR><CR><LF>``."""
    message = document.reply(b"*2\r\n$9\r\nKEYNOTIFY\r\n$0\r\n\r\n")
    assert message.payload == b"-ERR: the key length is zero\r\n"


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4", "-1:0:a", "1:x:a", "1:0:", "9" * 400 + ":0:a"])
def test_malformed_timestamps(server: Server, text: str) -> None:
    """In ``__ts`` and in ``__ft``, of any command; an empty node is malformed as well."""
    for payload in (SET, GET, DEL, OBSERVE):
        assert server.reply(payload, ts=text).payload == b"-ERR malformed timestamp\r\n"
        assert server.reply(payload, ft=text).payload == b"-ERR malformed timestamp\r\n"


def test_the_first_of_repeated_properties_counts(server: Server) -> None:
    """MQTT lets a user property repeat."""
    properties = PublishProperties(
        response_topic=RESPONSE_TOPIC, correlation_data=b"c", user_properties=(("__ts", TS), ("__ts", "NotValid"))
    )
    (effect,) = server.service.handle("c", Publish(COMMAND_TOPIC, SET, qos=1, properties=properties), server.now)
    assert routed(effect).payload == b"+OK\r\n"


def test_a_payload_error_is_told_before_a_timestamp_error(server: Server) -> None:
    """The payload is read first."""
    assert server.reply(b"nonsense", ts="NotValid").payload == b"-ERR syntax error\r\n"


def test_authorization_comes_before_execution() -> None:
    """What may not be done is not done, and others may be."""
    server = Server(forbidden=Get)
    assert server.reply(SET).payload == b"+OK\r\n"
    assert server.reply(GET).payload == b"-ERR not authorized\r\n"


# -- requests that are none -------------------------------------------------------------------------------------------

PROPERTIES = PublishProperties(response_topic=RESPONSE_TOPIC, correlation_data=b"c", user_properties=(("__ts", TS),))


def handle(server: Server, qos: int = 1, **changes: Any) -> Sequence[Effect]:
    properties = attrs.evolve(PROPERTIES, **changes)
    return server.service.handle("client-id1", Publish(COMMAND_TOPIC, SET, qos=qos, properties=properties), server.now)


@pytest.mark.parametrize("topic", [COMMAND_TOPIC, NOTIFY_TOPIC, NOTIFY_TOPIC[:58], "$SYS/broker/uptime"])
def test_forbidden_response_topics_disconnect(server: Server, topic: str) -> None:
    """ "The state store disconnects MQTT clients that use an invalid response topic."; nothing is executed."""
    (effect,) = handle(server, response_topic=topic)
    assert isinstance(effect, Kick)
    assert (effect.client_id, effect.reason_code) == ("client-id1", 0x90)
    assert server.reply(GET).payload == b"$-1\r\n"


@pytest.mark.parametrize("topic", ["", "clients/+/x", "clients/#"])
def test_response_topics_with_wildcards_disconnect(server: Server, topic: str) -> None:
    """A protocol error of MQTT itself."""
    (effect,) = handle(server, response_topic=topic)
    assert isinstance(effect, Kick)
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
    """None of them uses the document's recommendation, and all are answered."""
    (effect,) = handle(server, response_topic=topic)
    assert routed(effect).topic == topic


def test_requests_without_a_response_topic_are_dropped(server: Server) -> None:
    """There is nobody to tell; MQTT 3.1.1 clients end here."""
    assert handle(server, response_topic=None) == ()
    assert server.service.counters["dropped.no_response_topic"] == 1
    assert server.reply(GET).payload == b"$-1\r\n"


@pytest.mark.parametrize("qos", [0, 2])
def test_requests_need_qos_1(server: Server, document: Server, qos: int) -> None:
    """Anything else fails, with an answer, and is not executed."""
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
    """Empty correlation data is some; none fails."""
    assert routed(handle(server, correlation_data=None)[0]).payload == b"-ERR syntax error\r\n"
    assert routed(handle(server, correlation_data=b"")[0]).payload == b"+OK\r\n"


def test_expired_requests_are_dropped(server: Server) -> None:
    """Nobody waits for them any longer."""
    assert server.request(SET, expiry=0) == []
    assert server.service.counters["dropped.expired"] == 1
    assert server.reply(GET).payload == b"$-1\r\n"


# -- requests that arrive twice ---------------------------------------------------------------------------------------


def test_a_redelivered_request_is_not_executed_again(server: Server) -> None:
    """SET NX answers OK both times, with the same version; nobody is notified twice."""
    server.request(OBSERVE)
    first = server.request(SET_NX, correlation=b"same")
    second = server.request(SET_NX, correlation=b"same")
    assert len(first) == 2
    assert second == first[:1]
    assert server.service.counters["redelivered"] == 1


def test_a_refusal_is_repeated(server: Server) -> None:
    """Even if the reason is gone: the client may have been told."""
    first = server.request(SET, ts=AHEAD, correlation=b"same")
    server.advance(SKEW_S)
    assert server.request(SET, ts=AHEAD, correlation=b"same") == first


def test_a_redelivered_request_is_recognised_after_a_reconnect(server: Server) -> None:
    """That is when clients send again."""
    server.request(SET_NX, correlation=b"same")
    server.service.client_disconnected("client-id1", server.now)
    assert routed(server.request(SET_NX, correlation=b"same")[0]).payload == b"+OK\r\n"


def test_requests_are_recognised_by_client_and_content(server: Server) -> None:
    """The same correlation data of another client, with another payload, timestamp or token, is another request."""
    server.request(SET, correlation=b"same")
    assert routed(server.request(SET_NX, correlation=b"same")[0]).payload == b":-1\r\n"
    assert routed(server.request(SET_NX, correlation=b"same", client="other")[0]).payload == b":-1\r\n"
    later = server.request(SET, correlation=b"same", ts=f"{WALL}:5:CLIENT")
    assert version(routed(later[0])) == "001696374425000:00006:StateStore"
    assert routed(server.request(DEL, correlation=b"same", ft="NotValid")[0]).payload.startswith(b"-ERR malformed")
    assert routed(server.request(DEL, correlation=b"same")[0]).payload == b":1\r\n"


def test_reading_is_always_executed(server: Server) -> None:
    """A client that reuses its correlation data reads what is true now."""
    assert routed(server.request(GET, correlation=b"same")[0]).payload == b"$-1\r\n"
    server.request(SET)
    assert routed(server.request(GET, correlation=b"same")[0]).payload == b"$3\r\nabc\r\n"


def test_a_redelivered_keynotify_observes_again(server: Server) -> None:
    """The disconnect ended the observation; an answer from memory would leave the client without notifications."""
    server.request(OBSERVE, correlation=b"same")
    server.service.client_disconnected("client-id1", server.now)
    assert routed(server.request(OBSERVE, correlation=b"same")[0]).payload == b"+OK\r\n"
    assert len(server.request(SET)) == 2


def is_remembered(server: Server, correlation: bytes) -> bool:
    """Whether the SET NX with this correlation data still gets its first answer."""
    return routed(server.request(SET_NX, correlation=correlation)[0]).payload == b"+OK\r\n"


def test_remembered_responses_are_bounded_in_number() -> None:
    """The oldest make room; repeats do not."""
    server = Server(cache=ResponseCacheLimits(max_entries=2))
    server.request(SET_NX, correlation=b"1")
    server.request(VDEL, correlation=b"2")
    server.request(VDEL, correlation=b"2")
    assert is_remembered(server, b"1")
    server.request(VDEL, correlation=b"3")
    assert not is_remembered(server, b"1")


def test_remembered_responses_are_bounded_in_bytes() -> None:
    """Correlation data is chosen by clients and may be long: it costs no more than 32 bytes."""
    server = Server(cache=ResponseCacheLimits(max_bytes=1_200))
    server.request(SET_NX, correlation=b"1")
    assert is_remembered(server, b"1")
    server.request(VDEL, correlation=b"x" * 60_000)
    assert is_remembered(server, b"1")
    server.request(VDEL, correlation=b"y" * 60_000)
    assert not is_remembered(server, b"1")


def test_remembered_responses_are_bounded_in_age() -> None:
    """Ticks give their memory back."""
    server = Server(cache=ResponseCacheLimits(max_age_s=60))
    server.request(SET_NX, correlation=b"1")
    server.advance(60)
    assert is_remembered(server, b"1")
    server.advance(0.001)
    assert not is_remembered(server, b"1")
    server.advance(60.001)
    server.service.tick(server.now)
    assert len(server.service._responses) == 0


def test_remembering_can_be_switched_off() -> None:
    """With no entries every request is executed."""
    server = Server(cache=ResponseCacheLimits(max_entries=0))
    assert is_remembered(server, b"1")
    assert not is_remembered(server, b"1")


# -- notifications ----------------------------------------------------------------------------------------------------


def test_a_set_notifies_the_owning_connection(server: Server) -> None:
    """After the response: delivered to the client itself, subscribed or not, with the version and the value."""
    assert server.reply(OBSERVE).payload == b"+OK\r\n"
    response, notification = server.request(SET, client="writer")
    assert isinstance(notification, Deliver)
    assert notification.client_id == "client-id1"
    message = notification.message
    assert message.topic == NOTIFY_TOPIC
    assert message.payload == b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n"
    assert message.qos == 1
    assert message.properties.user_properties == (("__ts", "001696374425000:00001:StateStore"),)
    assert version(message) == version(routed(response))


def test_the_documents_dialect_publishes_notifications(document: Server) -> None:
    """To the topic, for whoever subscribed; ``DEL`` for a deletion, with the version of the value."""
    document.request(OBSERVE)
    document.request(SET)
    _, notification = document.request(DEL)
    message = routed(notification)
    assert message.topic == NOTIFY_TOPIC
    assert message.payload == b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n"
    assert message.properties.user_properties == (("__ts", "1696374425000:1:StateStore"),)


def test_a_deletion_notifies_in_the_services_word(server: Server) -> None:
    """``DELETE``, byte for byte as the Rust SDK compares it, with a version after the value's."""
    server.request(OBSERVE)
    stored = routed(server.request(SET)[0])
    response, notification = server.request(DEL)
    assert isinstance(notification, Deliver)
    assert notification.message.payload == b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"
    deleted = version(notification.message)
    assert deleted == version(routed(response))
    assert HlcTimestamp.parse(deleted or "") > HlcTimestamp.parse(version(stored) or "")


def test_an_expiry_notifies_at_the_tick(server: Server) -> None:
    """The deadline is announced; the tick hands the notification out, once."""
    server.request(OBSERVE)
    server.request(SET_PX)
    assert server.service.next_deadline() == 101.0
    server.advance(1)
    (notification,) = one_by_one(server.service.tick(server.now))
    assert isinstance(notification, Deliver)
    assert notification.message.payload == b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"
    assert list(server.service.tick(server.now)) == []
    assert server.service.next_deadline() is None


def test_every_observer_has_its_own_topic(server: Server) -> None:
    """Client ids in upper-case hexadecimal; the writer observes, too."""
    server.request(OBSERVE, client="a")
    server.request(OBSERVE, client="client-id1")
    _, *notifications = server.request(SET)
    topics = [n.message.topic.split("/")[4] for n in notifications if isinstance(n, Deliver)]
    assert topics == ["61", "636C69656E742D696431"]


def test_a_disconnect_ends_the_observation(server: Server) -> None:
    """ "the state store internally removes any KEYNOTIFY messages when a given client disconnects"."""
    server.request(OBSERVE)
    server.service.client_disconnected("client-id1", server.now)
    assert len(server.request(SET)) == 1
    assert server.reply(STOP).payload == b":0\r\n"


def test_stopping_is_answered_with_ok(server: Server) -> None:
    """And with zero when there is nothing to stop."""
    server.request(OBSERVE)
    assert server.reply(STOP).payload == b"+OK\r\n"
    assert server.reply(STOP).payload == b":0\r\n"


def test_a_key_too_long_for_a_notification_topic_is_not_observed(server: Server) -> None:
    """Its hexadecimal form would not fit an MQTT string of 65,535 bytes (MQTT 5.0, 1.5.4)."""
    key = b"k" * 40_000
    observe = b"*2\r\n$9\r\nKEYNOTIFY\r\n$40000\r\n" + key + b"\r\n"
    assert server.reply(observe).payload == b"-ERR syntax error\r\n"


# -- counting ---------------------------------------------------------------------------------------------------------


def test_requests_and_refusals_are_counted_by_kind(server: Server) -> None:
    """What an operator wants to see."""
    server.request(OBSERVE)
    server.request(SET)
    server.request(SET, ts=None)
    server.request(GET)
    server.request(b"nonsense")
    handle(server, qos=0)
    handle(server, response_topic=COMMAND_TOPIC)
    assert dict(server.service.counters) == {
        "requests.KeyNotify": 1,
        "requests.Set": 2,
        "requests.Get": 1,
        "notifications": 1,
        "refusals.MissingTimestampError": 1,
        "refusals.RequestSyntaxError": 1,
        "bad_requests": 1,
        "kicked": 1,
    }
