"""The state store as if careless brokers stood between it and its clients: messages twice, late, overtaken, or lost.

TCP keeps bytes in order and MQTT keeps the messages of one topic in order, but between two programs there may be more
than one broker, and more than one topic. While ``world.is_careless``:

* a request is delivered again, at once, or later, behind requests of others;
* a response or a notification is delivered twice;
* responses and notifications overtake each other; a response arrives behind those of later requests, or not at all.

Notifications are never lost, for then no watch could know the state of its key; and those of one key keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from statestore_client.server.broker.application import Effect, InOrder, Route
from statestore_client.server.service.service import StateStoreService

if TYPE_CHECKING:
    from sim_world import World

    from statestore_client.mqtt.packets.types import Publish
    from statestore_client.server.store import StateStore
    from statestore_client.wire.instant import Instant


_OFTEN = 0.2
_RARELY = 0.05


class CarelessService(StateStoreService):
    """Delivers all that it has kept back with the first request after the careless time."""

    def __init__(self, world: World, store: StateStore, **options: Any) -> None:
        super().__init__(store, **options)
        self._world = world
        self._repeats: list[tuple[str, Publish]] = []  # requests that will be delivered again
        self._late: list[Effect] = []

    def handle(self, client_id: str, message: Publish, now: Instant) -> Sequence[Effect]:
        if not self._world.is_careless:
            late, self._late = self._late, []
            return [*late, *super().handle(client_id, message, now)]
        return list(self._carelessly(client_id, message, now))

    def _carelessly(self, client_id: str, message: Publish, now: Instant) -> Iterator[Effect]:
        random = self._world.random
        effects = self._one_by_one(client_id, message, now)
        if random.random() < _OFTEN:
            effects += self._one_by_one(client_id, message, now)
        for repeat in [r for r in self._repeats if random.random() < _OFTEN]:
            self._repeats.remove(repeat)
            effects += self._one_by_one(*repeat, now)
        # A client that has gone would observe for ever; only a broker of its own could deliver that late.
        if random.random() < _OFTEN and b"KEYNOTIFY" not in message.payload:
            self._repeats.append((client_id, message))
        for effect in self._in_some_order(effects):
            yield effect
            if random.random() < _OFTEN:
                yield effect

    def _one_by_one(self, client_id: str, message: Publish, now: Instant) -> list[Effect]:
        """What follows from a request, with what series among it consist of."""
        effects = super().handle(client_id, message, now)
        return [each for e in effects for each in (e.effects if isinstance(e, InOrder) else (e,))]

    def _in_some_order(self, effects: list[Effect]) -> Iterator[Effect]:
        """Notifications in theirs; each response before, between or behind them, later, or never."""
        random = self._world.random
        responses = [e for e in effects if isinstance(e, Route)]
        late, self._late = self._late, []
        for effect in [e for e in effects if not isinstance(e, Route)]:
            while responses and random.random() < 0.5:
                yield responses.pop(0)
            yield effect
        for response in responses:
            if random.random() < _OFTEN:
                self._late.append(response)
            elif random.random() >= _RARELY:
                yield response
        yield from late
