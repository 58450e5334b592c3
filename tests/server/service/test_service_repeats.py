"""The state store as an application of the broker: requests that arrive twice, and whom it notifies."""

from __future__ import annotations

import pytest
from service_driver import (
    AHEAD,
    COMMAND_TOPIC,
    DEL,
    GET,
    NOTIFY_TOPIC,
    OBSERVE,
    SET,
    SET_NX,
    SET_PX,
    SKEW_S,
    STOP,
    VDEL,
    WALL,
    Server,
    handle,
    one_by_one,
    routed,
    version,
)

from statestore_client.server.broker.application import Deliver
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.wire.dialect import Dialect
from statestore_client.wire.hlc import HlcTimestamp


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def document() -> Server:
    return Server(Dialect.DOCUMENT)


# -- requests that arrive twice ---------------------------------------------------------------------------------------


def test_a_redelivered_request_is_not_executed_again(server: Server) -> None:
    """A redelivered SET NX answers OK with the same version, and nobody is notified twice."""
    server.request(OBSERVE)
    first = server.request(SET_NX, correlation=b"same")
    second = server.request(SET_NX, correlation=b"same")
    assert len(first) == 2
    assert second == first[:1]
    assert server.service.counters["redelivered"] == 1


def test_a_refusal_is_repeated(server: Server) -> None:
    """A refusal is repeated for a redelivered request, even if its reason is gone."""
    first = server.request(SET, ts=AHEAD, correlation=b"same")
    server.advance(SKEW_S)
    assert server.request(SET, ts=AHEAD, correlation=b"same") == first


def test_a_redelivered_request_is_recognised_after_a_reconnect(server: Server) -> None:
    """A request that is redelivered after a reconnect is recognised."""
    server.request(SET_NX, correlation=b"same")
    server.service.client_disconnected("client-id1", server.now)
    assert routed(server.request(SET_NX, correlation=b"same")[0]).payload == b"+OK\r\n"


def test_requests_are_recognised_by_client_and_content(server: Server) -> None:
    """A request with the same correlation data, but another client, payload, timestamp or token, is another request."""
    server.request(SET, correlation=b"same")
    assert routed(server.request(SET_NX, correlation=b"same")[0]).payload == b":-1\r\n"
    assert routed(server.request(SET_NX, correlation=b"same", client="other")[0]).payload == b":-1\r\n"
    later = server.request(SET, correlation=b"same", ts=f"{WALL}:5:CLIENT")
    assert version(routed(later[0])) == "001696374425000:00006:StateStore"
    assert routed(server.request(DEL, correlation=b"same", ft="NotValid")[0]).payload.startswith(b"-ERR malformed")
    assert routed(server.request(DEL, correlation=b"same")[0]).payload == b":1\r\n"


def test_reading_is_always_executed(server: Server) -> None:
    """A repeated read is executed again, so that it returns what is true now."""
    assert routed(server.request(GET, correlation=b"same")[0]).payload == b"$-1\r\n"
    server.request(SET)
    assert routed(server.request(GET, correlation=b"same")[0]).payload == b"$3\r\nabc\r\n"


def test_a_redelivered_keynotify_observes_again(server: Server) -> None:
    """A redelivered KEYNOTIFY observes again, since the disconnect has ended the observation."""
    server.request(OBSERVE, correlation=b"same")
    server.service.client_disconnected("client-id1", server.now)
    assert routed(server.request(OBSERVE, correlation=b"same")[0]).payload == b"+OK\r\n"
    assert len(server.request(SET)) == 2


def is_remembered(server: Server, correlation: bytes) -> bool:
    """Whether the SET NX with this correlation data still gets its first answer."""
    return routed(server.request(SET_NX, correlation=correlation)[0]).payload == b"+OK\r\n"


def test_remembered_responses_are_bounded_in_number() -> None:
    """Remembered responses are bounded in number: the oldest make room, and repetitions do not."""
    server = Server(cache=ResponseCacheLimits(max_entries=2))
    server.request(SET_NX, correlation=b"1")
    server.request(VDEL, correlation=b"2")
    server.request(VDEL, correlation=b"2")
    assert is_remembered(server, b"1")
    server.request(VDEL, correlation=b"3")
    assert not is_remembered(server, b"1")


def test_remembered_responses_are_bounded_in_bytes() -> None:
    """A remembered response costs at most 32 bytes for its correlation data, which clients choose."""
    server = Server(cache=ResponseCacheLimits(max_bytes=1_600))
    server.request(SET_NX, correlation=b"1")
    assert is_remembered(server, b"1")
    server.request(VDEL, correlation=b"x" * 60_000)
    assert is_remembered(server, b"1")
    server.request(VDEL, correlation=b"y" * 60_000)
    assert not is_remembered(server, b"1")


def test_remembered_responses_are_bounded_in_age() -> None:
    """Ticks give back the memory of responses that are too old."""
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
    """With room for no entry every request is executed."""
    server = Server(cache=ResponseCacheLimits(max_entries=0))
    assert is_remembered(server, b"1")
    assert not is_remembered(server, b"1")


# -- notifications ----------------------------------------------------------------------------------------------------


def test_a_set_notifies_the_owning_connection(server: Server) -> None:
    """A SET notifies the owning connection after the response, subscribed or not, with version and value."""
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
    """The document's dialect publishes to the notification topic, with ``DEL`` and the value's version for a
    deletion."""
    document.request(OBSERVE)
    document.request(SET)
    _, notification = document.request(DEL)
    message = routed(notification)
    assert message.topic == NOTIFY_TOPIC
    assert message.payload == b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n"
    assert message.properties.user_properties == (("__ts", "1696374425000:1:StateStore"),)


def test_a_deletion_notifies_in_the_services_word(server: Server) -> None:
    """The service's dialect notifies of ``DELETE``, byte for byte as the Rust SDK compares it, with a later version."""
    server.request(OBSERVE)
    stored = routed(server.request(SET)[0])
    response, notification = server.request(DEL)
    assert isinstance(notification, Deliver)
    assert notification.message.payload == b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"
    deleted = version(notification.message)
    assert deleted == version(routed(response))
    assert HlcTimestamp.parse(deleted or "") > HlcTimestamp.parse(version(stored) or "")


def test_an_expiry_notifies_at_the_tick(server: Server) -> None:
    """An expiry notifies once, at the tick, whose time is announced."""
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
    """Each observer has its own topic with its client id in upper-case hexadecimal; the writer may observe too."""
    server.request(OBSERVE, client="a")
    server.request(OBSERVE, client="client-id1")
    _, *notifications = server.request(SET)
    topics = [n.message.topic.split("/")[4] for n in notifications if isinstance(n, Deliver)]
    assert topics == ["61", "636C69656E742D696431"]


def test_a_disconnect_ends_the_observation(server: Server) -> None:
    """A disconnect ends the observation ("the state store internally removes any KEYNOTIFY messages when a given client
    disconnects")."""
    server.request(OBSERVE)
    server.service.client_disconnected("client-id1", server.now)
    assert len(server.request(SET)) == 1
    assert server.reply(STOP).payload == b":0\r\n"


def test_stopping_is_answered_with_ok(server: Server) -> None:
    """STOP is answered with OK, or with zero if there is nothing to stop."""
    server.request(OBSERVE)
    assert server.reply(STOP).payload == b"+OK\r\n"
    assert server.reply(STOP).payload == b":0\r\n"


def test_a_key_too_long_for_a_notification_topic_is_not_observed(server: Server) -> None:
    """A key whose notification topic would exceed 65,535 bytes (MQTT 5.0, 1.5.4) is not observed."""
    key = b"k" * 40_000
    observe = b"*2\r\n$9\r\nKEYNOTIFY\r\n$40000\r\n" + key + b"\r\n"
    assert server.reply(observe).payload == b"-ERR syntax error\r\n"


# -- counting ---------------------------------------------------------------------------------------------------------


def test_requests_and_refusals_are_counted_by_kind(server: Server) -> None:
    """Requests and refusals are counted by kind."""
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
