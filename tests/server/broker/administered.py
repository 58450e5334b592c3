"""A broker with administration inside, and a client that has the right to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from support.broker_driver import World

from statestore_client.mqtt.packets import Puback, Publish
from statestore_client.server.broker.administration import Administration
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import StateStore
from statestore_client.wire.administration import CONTROL_TOPIC, RetainedInfo, SessionInfo
from statestore_client.wire.hlc import HybridLogicalClock

DAY = 86_400


class Administered(World):
    """A broker, its application, and an administrator who asks."""

    def __init__(self, **limits: Any) -> None:
        self.obstacle: str | None = None
        service = StateStoreService(
            StateStore(clock=HybridLogicalClock("n", guard=threading.Lock())), token_key=bytes(TOKEN_KEY_BYTES)
        )
        super().__init__(application=service, **limits)
        self.application = Administration(self.broker.control, lambda _: self.obstacle)
        self.broker.install(self.application)
        self.admin = self.client("admin")

    def ask_raw(self, payload: bytes, qos: int = 1, **properties: Any) -> dict[str, Any]:
        """The answer."""
        properties = {"response_topic": "answers", "correlation_data": b"7"} | properties
        self.admin.publish(CONTROL_TOPIC, payload, qos, **properties)
        acknowledgement, answer = self.admin.received()
        assert isinstance(acknowledgement, Puback)
        assert isinstance(answer, Publish)
        assert (answer.topic, answer.properties.correlation_data) == ("answers", properties["correlation_data"])
        assert len(answer.payload) < 1_000_000
        found: dict[str, Any] = json.loads(answer.payload)
        return found

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        return self.ask_raw(json.dumps({"command": command, **fields}).encode())

    def pages(self, command: str, **fields: Any) -> Iterator[dict[str, Any]]:
        place: dict[str, Any] = {}
        while True:
            answer = self.ask(command, **fields, **place)
            yield answer
            if answer["next"] is None:
                return
            place = {"at": answer["next"]}

    def sessions(self) -> dict[str, SessionInfo]:
        """All, in their order, with the parts put together."""
        found: dict[str, SessionInfo] = {}
        for answer in self.pages("sessions.list"):
            for each in map(SessionInfo.decode, answer["sessions"]):
                known = found.get(each.client_id)
                more = () if known is None else known.subscriptions
                found[each.client_id] = attrs.evolve(each, subscriptions=more + each.subscriptions)
        return found

    def retained(self, topic_filter: str | None = None, *, payloads: bool = False) -> list[RetainedInfo]:
        return [
            RetainedInfo.decode(each)
            for answer in self.pages("retained.list", filter=topic_filter, payloads=payloads)
            for each in answer["messages"]
        ]

    def absent(self, client_id: str, *filters: str) -> None:
        """A session whose client has left."""
        client = self.client(client_id, session_expiry=DAY)
        if filters:
            client.subscribe(*filters, qos=1)
        client.lose()


@pytest.fixture(name="world")
def administered_world() -> Administered:
    return Administered()
