"""Is there a store on this broker already? Asked before a host subscribes: two stores would both carry out requests.

A request is published as a client does, under another client identifier, and whoever answers it within a second is a
store. A host of before that was killed, or that stands still, answers nothing, and is replaced. Of hosts that share a
log the active one answers the others: by the name of its store they know that it is theirs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import StateStoreError
from statestore_client.mqtt.packets.types import Publish, PublishProperties, ReasonCode
from statestore_client.mqtt.service_connection import ServiceConnector, ServiceDriver
from statestore_client.wire.commands import Get
from statestore_client.wire.messages import Closed, Connected, Published, Subscribed
from statestore_client.wire.protocol import COMMAND_TOPIC, QOS, SOURCE_ID, STORE_ID, response_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statestore_client.mqtt.driver import AioDriver
    from statestore_client.settings import ConnectionSettings

#: How long a store gets to answer. It is there or not: a slow one answers its clients late as well.
_ANSWER_S: Final = 1.0
#: Of packets of the broker: an answer has few bytes.
_PACKET_BYTES: Final = 65_536


async def has_store(
    settings: ConnectionSettings, name: str, correlation_data: bytes, is_own: Callable[[str], bool]
) -> bool | Closed:
    """Whether another store answers on the broker, or why the broker cannot be asked. ``name`` is the host's own;
    ``is_own`` knows its store by the name that is in the answer.
    """
    look = _Look(f"{name}-look", correlation_data, is_own)
    short = settings.evolve(client_id=None, session_expiry=0)
    connector = ServiceConnector(short, client_id=look.client_id, maximum_packet_size=_PACKET_BYTES)
    look.driver = driver = connector.open(clean_start=True, on_events=look.on_events)
    try:
        await driver.connect()
        return await look.found
    finally:
        look.stop()
        driver.disconnect()
        driver.flush()
        connector.close()


@attrs.define(eq=False)
class _Look:
    client_id: str
    correlation_data: bytes
    is_own: Callable[[str], bool]
    found: asyncio.Future[bool | Closed] = attrs.field(
        init=False, factory=lambda: asyncio.get_running_loop().create_future()
    )
    driver: ServiceDriver | None = attrs.field(default=None, init=False)
    timer: asyncio.TimerHandle | None = attrs.field(default=None, init=False)

    def on_events(self, driver: AioDriver, events: Sequence[object]) -> None:
        for event in events:
            if isinstance(event, Connected):
                driver.subscribe(1, (response_topic(self.client_id),))
            elif isinstance(event, Subscribed):
                self._ask()
            elif isinstance(event, Published) and event.reason_code == ReasonCode.NO_MATCHING_SUBSCRIBERS:
                self._end(is_there=False)
            elif isinstance(event, Publish):
                self._end(is_there=self._is_other_store(event.properties))
            elif isinstance(event, Closed) and not self.found.done():
                self.found.set_result(event)
        driver.flush()

    def _ask(self) -> None:
        properties = PublishProperties(
            message_expiry=1,
            response_topic=response_topic(self.client_id),
            correlation_data=self.correlation_data,
            user_properties=((SOURCE_ID, self.client_id),),
        )
        if self.driver is not None:
            self.driver.publish_packet(1, Publish(COMMAND_TOPIC, Get(b"?").encode(), QOS, properties=properties))
        self.timer = asyncio.get_running_loop().call_later(_ANSWER_S, lambda: self._end(is_there=False))

    def _is_other_store(self, answer: PublishProperties) -> bool:
        store_id = next((value for name, value in answer.user_properties if name == STORE_ID), "")
        return answer.correlation_data == self.correlation_data and not self.is_own(store_id)

    def _end(self, *, is_there: bool) -> None:
        if not self.found.done():
            self.found.set_result(is_there)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


def already_there(url: str) -> StateStoreError:
    """What the second host ends with."""
    return StateStoreError(
        f"a state store answers already on the broker at {url}: two of them would carry each request out twice. Is "
        "another host running, or does the broker have a store of its own?"
    )
