"""The state store as an application of the broker, a clock that tests move, and requests in bytes of the document."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import attrs

from statestore_client.mqtt.packets.types import Publish, PublishProperties
from statestore_client.server.broker.application import Effect, InOrder, ReportClock, ReportDenial, Route
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import StateStore, StoreLimits
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import Dialect

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COMMAND_TOPIC = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
RESPONSE_TOPIC = "clients/client-id1/services/statestore/_any_/command/invoke/response"
NOTIFY_TOPIC = (
    "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/636C69656E742D696431/command/notify/534F4D454B4559"
)
WALL = 1_696_374_425_000
SKEW_S = 61
AHEAD = f"{WALL + SKEW_S * 1000}:0:CLIENT"
TS = "1696374425000:0:CLIENT"

PROPERTIES = PublishProperties(response_topic=RESPONSE_TOPIC, correlation_data=b"c", user_properties=(("__ts", TS),))

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
    """A service with a clock that the test moves. Every request has new correlation data and a new packet identifier,
    unless a test says otherwise. ``users`` are those of clients, ``forbidden`` what nobody may do; both may change.
    """

    def __init__(
        self,
        dialect: Dialect = Dialect.SERVICE,
        *,
        limits: StoreLimits | None = None,
        cache: ResponseCacheLimits | None = None,
        forbidden: type[Command] | None = None,
        token_key: bytes = bytes(TOKEN_KEY_BYTES),
    ) -> None:
        clock = HybridLogicalClock("StateStore", guard=nullcontext())
        self.users: dict[str, str] = {}
        self.forbidden = forbidden
        store = StateStore(clock=clock, limits=limits or StoreLimits(), dialect=dialect)
        self.service = StateStoreService(
            store,
            token_key=token_key,
            dialect=dialect,
            authorize=lambda _, command: self.forbidden is None or not isinstance(command, self.forbidden),
            cache_limits=cache or ResponseCacheLimits(),
            user_of=lambda client_id: self.users.get(client_id),
        )
        self.now = Instant(100.0, WALL)
        self.requests = 0

    def advance(self, seconds: float) -> None:
        self.now = Instant(self.now.monotonic + seconds, self.now.wall_ms + int(seconds * 1000))

    def request(self, payload: bytes, **options: Any) -> list[Effect]:
        """See :meth:`handle`."""
        return one_by_one(self.handle(payload, **options))

    def handle(
        self,
        payload: bytes,
        *,
        ts: str | None = TS,
        ft: str | None = None,
        correlation: bytes | None = None,
        client: str = "client-id1",
        expiry: int | None = 10,
        packet_id: int | None = None,
        dup: bool = False,
        more: tuple[tuple[str, str], ...] = (),
    ) -> Sequence[Effect]:
        self.requests += 1
        extra = tuple((name, text) for name, text in (("__ts", ts), ("__ft", ft)) if text is not None)
        properties = PublishProperties(
            message_expiry=expiry,
            response_topic=RESPONSE_TOPIC,
            correlation_data=correlation or self.requests.to_bytes(16),
            user_properties=(("__srcId", client), ("$partition", client), *extra, *more),
        )
        number = self.requests if packet_id is None else packet_id
        message = Publish(COMMAND_TOPIC, payload, qos=1, dup=dup, packet_id=number, properties=properties)
        return self.service.handle(client, message, self.now)

    def reply(
        self, payload: bytes, *, ts: str | None = TS, ft: str | None = None, client: str = "client-id1"
    ) -> Publish:
        """The response of a request that causes nothing else."""
        effects = self.request(payload, ts=ts, ft=ft, client=client)
        (effect,) = (effect for effect in effects if not isinstance(effect, ReportClock | ReportDenial))
        return routed(effect)


def one_by_one(effects: Iterable[Effect]) -> list[Effect]:
    """With what the series among them consist of."""
    return [each for effect in effects for each in (effect.effects if isinstance(effect, InOrder) else (effect,))]


def routed(effect: Effect) -> Publish:
    assert isinstance(effect, Route)
    return effect.message


def version(message: Publish) -> str | None:
    return dict(message.properties.user_properties).get("__ts")


def handle(server: Server, qos: int = 1, payload: bytes = SET, **changes: Any) -> Sequence[Effect]:
    """What comes of a request, by default a SET, with these properties instead."""
    message = Publish(
        COMMAND_TOPIC, payload, qos=qos, packet_id=qos and 1, properties=attrs.evolve(PROPERTIES, **changes)
    )
    return server.service.handle("client-id1", message, server.now)
