"""The state store as an application of the broker: requests that arrive twice, and whom it notifies."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from statestore_client.server.broker.application import Deliver, InOrder
from statestore_client.server.service.response_cache import ResponseCache, ResponseCacheLimits
from statestore_client.wire.commands import Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.protocol import Dialect

VDEL_ABC = VDEL.replace(b"xyz", b"abc")


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
    assert list(server.request(SET, ts=AHEAD, correlation=b"same")) == list(first[:1])


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


@pytest.mark.parametrize("payload", [DEL, VDEL_ABC])
def test_a_new_publish_without_a_timestamp_is_carried_out(server: Server, payload: bytes) -> None:
    """A DEL or VDEL without ``__ts`` that uses its correlation data again is another request."""
    for _ in range(2):
        assert server.reply(SET).payload == b"+OK\r\n"
        assert routed(server.request(payload, ts=None, correlation=b"same")[0]).payload == b":1\r\n"
    assert server.reply(GET).payload == b"$-1\r\n"
    assert routed(server.request(payload, ts=None, correlation=b"same")[0]).payload == b":0\r\n"
    assert "redelivered" not in server.service.counters


def test_a_redelivered_delete_without_a_timestamp_is_not_carried_out_again(server: Server) -> None:
    """Without ``__ts``, the DUP flag and the first packet identifier tell a redelivery, after a reconnect, too."""
    server.request(SET)
    first = server.request(DEL, ts=None, correlation=b"same", packet_id=7)
    server.service.client_disconnected("client-id1", server.now)
    server.request(SET)
    assert server.request(DEL, ts=None, correlation=b"same", packet_id=7, dup=True) == first
    assert server.reply(GET).payload == b"$3\r\nabc\r\n"


def test_a_flag_alone_makes_no_redelivery(server: Server) -> None:
    """Without ``__ts``, a PUBLISH with the DUP flag and another packet identifier is carried out: the first one never
    came.
    """
    server.request(SET)
    server.request(DEL, ts=None, correlation=b"same", packet_id=7)
    server.request(SET)
    assert routed(server.request(DEL, ts=None, correlation=b"same", packet_id=8, dup=True)[0]).payload == b":1\r\n"


def test_a_request_with_a_timestamp_is_the_same_in_a_new_publish(server: Server) -> None:
    """With ``__ts`` neither the DUP flag nor the packet identifier matters: a client whose session was lost sends its
    request again as a new PUBLISH.
    """
    server.request(SET)
    first = server.request(DEL, correlation=b"same", packet_id=7)
    server.request(SET)
    assert server.request(DEL, correlation=b"same", packet_id=8) == first


def test_a_will_is_always_carried_out(server: Server) -> None:
    """A will has no packet identifier and is sent once: the next one with the same content is another request."""
    for _ in range(2):
        server.request(SET)
        assert routed(server.request(DEL, correlation=b"will", packet_id=0)[0]).payload == b":1\r\n"


@pytest.mark.parametrize("users", [("alice", "bob"), (None, "bob"), ("alice", None)])
@pytest.mark.attack("MQTT", "read with the answers that a former user of the client identifier was given")
def test_what_a_user_was_answered_is_not_another_users(server: Server, users: tuple[str | None, str | None]) -> None:
    """The user belongs to the request: another one who has the client identifier later has his own carried out."""
    answers = []
    for user in users:
        server.users = {} if user is None else {"client-id1": user}
        answers.append(routed(server.request(SET_NX, correlation=b"same")[0]).payload)
        assert routed(server.request(SET_NX, correlation=b"same")[0]).payload == answers[-1]
    assert answers == [b"+OK\r\n", b":-1\r\n"]


def test_rights_are_looked_at_before_a_request_is_recognised(server: Server) -> None:
    """Who has lost the right to a request is refused, though it was answered before; with the right comes the answer.
    What was refused so is not remembered.
    """
    first = server.request(SET_NX, correlation=b"same")
    server.forbidden = Set
    refused = server.request(SET_NX, correlation=b"same")
    assert routed(refused[0]).payload == b"-ERR not authorized\r\n"
    server.request(SET_NX, correlation=b"other", ts=f"{WALL}:9:CLIENT")
    server.forbidden = None
    assert server.request(SET_NX, correlation=b"same") == first
    later = server.request(SET_NX, correlation=b"other", ts=f"{WALL}:9:CLIENT")
    assert routed(later[0]).payload == b":-1\r\n"


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


@pytest.mark.attack("MQTT", "hear a notification of a former user of the client identifier")
def test_a_notification_under_way_is_not_for_the_next_one_under_that_client_identifier(server: Server) -> None:
    """Many observers are told a part at a time. Of one that leaves meanwhile nothing is said any more: who has its name
    then may be another user, who may not see the value."""
    names = [f"c{number}" for number in range(3)]
    for name in names:
        server.request(OBSERVE, client=name)
    (series,) = (effect for effect in server.handle(SET, client="writer") if isinstance(effect, InOrder))
    effects = iter(series.effects)
    first = next(effects)
    server.service.client_disconnected("c1", server.now)
    told = [effect.client_id for effect in (first, *effects) if isinstance(effect, Deliver)]
    assert told == ["c0", "c2"]


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


# -- responses to requests that may arrive twice -----------------------------------------------------------------------

OK = b"+OK\r\n"


class Cache:
    """A cache, and what was put into it that it has to have or may have forgotten."""

    def __init__(self, **limits: int) -> None:
        self.limits = ResponseCacheLimits(**limits)
        self.cache = ResponseCache(self.limits)
        self.asked: list[tuple[str, bytes]] = []

    def put(self, client: str, count: int = 1, *, now: float = 0.0, payload: bytes = OK) -> None:
        for _ in range(count):
            request = (client, len(self.asked).to_bytes(16))
            self.asked.append(request)
            self.cache.put(request, 1, payload, None, now)

    def kept(self, now: float = 0.0) -> Counter[str]:
        """How many responses to each client there are."""
        return Counter(request[0] for request in self.asked if self.cache.get(request, 1, now))


def test_a_busy_client_drives_nobody_else_out() -> None:
    """All of a quiet client's three responses are kept while another sends ten times as many requests as there is room
    for."""
    cache = Cache(max_entries=100)
    cache.put("quiet", 3)
    cache.put("busy", 1_000)
    assert cache.kept() == {"quiet": 3, "busy": 97}


def test_of_one_client_the_oldest_makes_room() -> None:
    """Of one client's responses the oldest makes room, because the last requests are those that may be repeated."""
    cache = Cache(max_entries=3)
    cache.put("busy", 5)
    assert [cache.cache.get(request, 1, 0.0) is not None for request in cache.asked] == [False] * 2 + [True] * 3


@pytest.mark.parametrize("limits", [{"max_entries": 120}, {"max_bytes": 60_000}])
def test_busy_clients_share(limits: dict[str, int]) -> None:
    """A client that fills the cache gives way to later ones, until each has about the same number."""
    cache = Cache(**limits)
    cache.put("first", 500)
    for _ in range(500):
        cache.put("second")
        cache.put("third")
    kept = cache.kept()
    assert max(kept.values()) <= 2 * min(kept.values())
    assert kept.keys() == {"first", "second", "third"}


def test_clients_without_number_are_bounded() -> None:
    """When many clients have one response each, the one that has waited longest makes room."""
    cache = Cache(max_entries=50)
    for number in range(200):
        cache.put(str(number))
    assert list(cache.kept()) == [str(number) for number in range(150, 200)]


def test_what_is_outdated_goes_in_slices() -> None:
    """A tick removes a bounded number of outdated responses, of one client and of many, and every client has its
    turn."""
    cache = Cache()
    cache.put("busy", 3_000)
    for number in range(300):
        cache.put(str(number))
    sizes = [len(cache.cache)]
    while sizes[-1] and len(sizes) < 100:
        cache.cache.drop_old(301.0)
        sizes.append(len(cache.cache))
    assert sizes[-1] == 0
    assert all(0 < before - after <= 1_000 for before, after in pairwise(sizes))


def test_what_is_not_outdated_stays() -> None:
    """Of a client that goes on, only outdated responses go, two for each that comes."""
    cache = Cache()
    cache.put("client", 3, now=0.0)
    cache.put("client", 3, now=200.0)
    cache.put("other", 1, now=300.0)
    cache.cache.drop_old(400.0)
    assert cache.kept(400.0) == {"client": 3, "other": 1}
    cache.put("client", now=400.0)
    assert (len(cache.cache), cache.kept(400.0)) == (6, {"client": 4, "other": 1})
    cache.put("client", now=400.0)
    assert (len(cache.cache), cache.kept(400.0)) == (6, {"client": 5, "other": 1})


@pytest.mark.parametrize("limits", [{"max_entries": 300}, {"max_bytes": 330_000}])
def test_who_left_long_ago_makes_room_first(limits: dict[str, int]) -> None:
    """Clients that left long ago make room first, and a client that goes on keeps all that it may repeat."""
    cache = Cache(**limits)
    for number in range(300):
        cache.put(str(number), now=float(number))
    cache.put("goes on", 100, now=10_000.0)
    assert cache.kept(10_000.0) == {"goes on": 100}


def test_long_names_count() -> None:
    """A client id counts with its up to 64 kB as long as a response to its client is kept."""
    cache = Cache(max_bytes=1_000_000)
    for number in range(100):
        cache.put("\u00fc" * 30_000 + str(number))
    assert 10 < len(cache.cache) < 17


steps = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 5_000)), max_size=40)


@given(steps, st.integers(0, 20), st.integers(500, 30_000))
def test_nobody_with_little_makes_room(changes: list[tuple[str, int, int]], entries: int, size: int) -> None:
    """The cache stays within its limits, and a client that uses less than a 2n-th of all that n clients use loses
    nothing."""
    cache = Cache(max_entries=entries, max_bytes=size)
    inside = cache.cache
    for client, count, length in changes:
        for _ in range(count):
            used = {name: share.used_bytes for name, share in inside._shares.items() if name != client}
            before, clients = cache.kept(), len({*used, client})
            cache.put(client, payload=b"-" * length)
            after = cache.kept()
            lost = sum(before[name] - after[name] for name in used)
            assert len(inside) == sum(after.values()) <= entries
            assert inside._used_bytes == sum(share.used_bytes for share in inside._shares.values()) <= size
            if not lost:
                continue
            for name, its_bytes in used.items():
                assert after[name] == before[name] or its_bytes * 2 * clients >= inside._used_bytes
