"""Every limit of the broker, with its reason. What a client can make the broker hold is bounded by one of these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import validate_topic_filter
from statestore_client.mqtt.packets.primitives import MAX_VARIABLE
from statestore_client.server.checks import choice, flag, number, seconds, text

#: The usual bound of a packet. Clients are told of another one, and of this one when they ask for problem information.
LARGEST_PACKET_BYTES: Final = 16 * 1024 * 1024

#: Session expiry interval that means "never" (MQTT 5.0, 3.1.2.11.2).
NEVER_EXPIRES: Final = 0xFFFF_FFFF

#: What becomes of messages for a session that takes no more; see overflow.py.
WHEN_FULL: Final = ("drop-new", "drop-old", "end-session", "refuse")


def _as_filters(topic_filters: Iterable[str]) -> tuple[str, ...]:
    if isinstance(topic_filters, str) or not isinstance(topic_filters, Iterable):
        # Each of the characters of a text may be a filter itself.
        raise InvalidArgumentError(
            f'refused_filters must be a list of filters, like ["secret/#"], not {topic_filters!r}'
        )
    found = tuple(topic_filters)
    for topic_filter in found:
        validate_topic_filter(topic_filter)
    return found


@attrs.frozen(kw_only=True)
class BrokerLimits:
    """Frozen for the life of a broker: CONNACK has announced some of them to every client.

    Raises InvalidArgumentError for what is not a limit: another type, or a number that MQTT or the broker cannot use.
    """

    # An unfinished packet waits in memory, once per connection; real state store values are a few KiB.
    packet_bytes: int = attrs.field(default=LARGEST_PACKET_BYTES, validator=number(1, MAX_VARIABLE))
    # The same for all clients together, against many that each leave a large packet unfinished. Over it, of the address
    # that holds most, the client that holds most is disconnected (0x97).
    unfinished_bytes: int = attrs.field(default=256 * 1024 * 1024, validator=number(1))
    # A CONNECT: whoever sends it may be anybody. Room for a will of 64 KiB and all names at a usual length.
    connect_bytes: int = attrs.field(default=128 * 1024, validator=number(1, MAX_VARIABLE))
    # What all peers together may send before it is known who they are. Over it, the same rule as above.
    unauthenticated_bytes: int = attrs.field(default=16 * 1024 * 1024, validator=number(1))
    # Their number, beside the clients: in a handshake, before CONNECT, or while credentials are verified. Over it, of
    # the address with most of them, the oldest is dropped. A thousand handshakes of TLS take a second or two.
    unauthenticated_connections: int = attrs.field(default=1_000, validator=number(1))
    # QoS 2 packet identifiers that one client may leave unreleased; QoS 1 is acknowledged at once and never waits. A
    # client that takes many messages at a time may have as many under way itself, up to this number.
    receive_maximum: int = attrs.field(default=1024, validator=number(1, 0xFFFF))
    # What the others are told: those that name a smaller number, or none. Small clients keep a table of that size.
    usual_receive_maximum: int = attrs.field(default=20, validator=number(1, 0xFFFF))
    # One topic per alias and connection is kept, for those of clients and for ours: no more, whatever a client allows.
    topic_alias_maximum: int = attrs.field(default=10, validator=number(0, 0xFFFF))
    # Messages to one client that it did not acknowledge yet, when it names no smaller Receive Maximum.
    in_flight: int = attrs.field(default=1024, validator=number(1, 0xFFFF))
    # Those in bytes: they are kept until they are acknowledged. One message is always sent, whatever its size.
    in_flight_bytes: int = attrs.field(default=16 * 1024 * 1024, validator=number(1))
    # Messages waiting behind those, per session. Beyond it, ``when_full`` says what happens.
    queued_messages: int = attrs.field(default=65_536, validator=number(1))
    queued_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=number(1))
    # The client that does not read bears it, unless its publishers are to ("refuse"). See overflow.py.
    when_full: str = attrs.field(default="drop-new", validator=choice(*WHEN_FULL))
    # All sessions together: messages that wait or are in flight, wills, topic aliases, unreleased QoS 2. Over it, the
    # queue that holds most gives room; what finds none even so is refused (0x97, wills in CONNACK).
    held_bytes: int = attrs.field(default=1024 * 1024 * 1024, validator=number(1))
    # What every session may hold even then: those who use little must not suffer from those who use much.
    reserved_bytes: int = attrs.field(default=64 * 1024, validator=number(0))
    # Bytes encoded for one connection and not yet taken by its socket; more waits unencoded, in the session's queue.
    outbox_bytes: int = attrs.field(default=64 * 1024, validator=number(1))

    # Of connections and sessions, users who have few may have an eighth more; see server/shares.py. Of sessions that
    # make room for new ones, only his own make room for one of a user who has many.
    connections: int = attrs.field(default=10_000, validator=number(0))
    # Of those, one user's and one address's (IPv6: 64 bits of it); 0 for all of them. Beyond it, CONNACK 0x97. As many
    # more of one address may be unauthenticated; then its oldest is dropped.
    connections_per_user: int = attrs.field(default=0, validator=number(0))
    connections_per_address: int = attrs.field(default=0, validator=number(0))
    # Wrong passwords and tokens of one address at once, 0 for any number; then one more every five seconds. The others
    # get CONNACK 0x9F and cost no hash. Passwords that were right before go through.
    failed_attempts: int = attrs.field(default=20, validator=number(0))
    # What one connection may send, averaged over a second; 0 for any number. It is not read for a while after more.
    # Messages are PUBLISH, SUBSCRIBE and UNSUBSCRIBE.
    received_bytes_per_s: int = attrs.field(default=0, validator=number(0))
    received_messages_per_s: int = attrs.field(default=0, validator=number(0))
    # How long a client identifier is held that keeps stealing its own session; 0 switches that off.
    flapping_hold_s: float = attrs.field(default=1.0, validator=seconds())
    # Sessions survive their connections, so a loop of new client identifiers would grow for ever.
    sessions: int = attrs.field(default=20_000, validator=number(0))
    sessions_per_user: int = attrs.field(default=0, validator=number(0))
    subscriptions_per_session: int = attrs.field(default=10_000, validator=number(0))
    # A filter costs its bytes and its nodes in the tree; see subscription_cost().
    subscription_bytes_per_session: int = attrs.field(default=32 * 1024 * 1024, validator=number(0))
    subscription_bytes: int = attrs.field(default=128 * 1024 * 1024, validator=number(0))
    # A level is a node of a tree and a step for every message; the deepest topics in the wild have a dozen.
    topic_levels: int = attrs.field(default=201, validator=number(1))
    retained_messages: int = attrs.field(default=100_000, validator=number(0))
    retained_bytes: int = attrs.field(default=256 * 1024 * 1024, validator=number(0))
    # A will waits as long as its client is connected, and longer; what it says is short.
    will_bytes: int = attrs.field(default=64 * 1024, validator=number(0))
    # As long as the protocol lets them be; 23 must be allowed (MQTT-3.1.3-5). Those of more than 1,024 bytes count in
    # ``held_bytes``; where the state store would put such a name into a topic, it says that the topic is too long.
    client_id_bytes: int = attrs.field(default=65_535, validator=number(23, 0xFFFF))

    # How often the $SYS topics are renewed, while somebody listens; 0 for no such topics.
    sys_interval_s: float = attrs.field(default=10.0, validator=seconds())
    # What a client that asks for it is told to begin its response topics with; "" for nothing.
    response_information: str = attrs.field(default="clients/{client_id}", validator=text)
    # Announced as Server Keep Alive to clients that ask for more, or for none: who vanished without a word is found
    # within a minute and a half, and its will goes out. 0: the client's wish stands, as it does in 3.1.1 anyway.
    keep_alive_s: int = attrs.field(default=60, validator=number(0, 0xFFFF))
    # The longest that a session may outlive its connection; CONNACK tells who asked for more. A client that nobody
    # remembers must not have the server keep messages for ever; devices that are in use come back within a week.
    session_expiry_s: int = attrs.field(default=7 * 24 * 60 * 60, validator=number(0, NEVER_EXPIRES))
    # Sessions that last for ever fill any server: those of clients that have been away for this long end when room is
    # short, with the messages in them (docs/decisions/bounds.md).
    evict_after_s: int = attrs.field(default=24 * 60 * 60, validator=seconds())
    # What a server need not offer; see Capabilities in admission.py. CONNACK tells MQTT 5.0 clients what is missing.
    maximum_qos: int = attrs.field(default=2, validator=number(0, 2))
    retain_available: bool = attrs.field(default=True, validator=flag)
    wildcards_available: bool = attrs.field(default=True, validator=flag)
    shared_subscriptions_available: bool = attrs.field(default=True, validator=flag)
    subscription_ids_available: bool = attrs.field(default=True, validator=flag)
    # Subscriptions to what one of these filters covers are refused (SUBACK 0x87, in 3.1.1 0x80), for tests of clients.
    refused_filters: tuple[str, ...] = attrs.field(default=(), converter=_as_filters)
    # A filter to refuse with SUBACK 0x80; "" for none. Clients' own test suites want "test/nosubscribe" to be one.
    unsubscribable: str = attrs.field(default="", validator=text)
    # A client that never finishes its CONNECT must not hold a connection (slowloris).
    connect_timeout_s: float = attrs.field(default=10.0, validator=seconds(0.001))
