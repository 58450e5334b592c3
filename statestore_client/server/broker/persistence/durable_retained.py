"""What of the retained messages is written down: all but what the broker says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.server.broker.persistence.records import MessageRecord
from statestore_client.server.broker.sys_topics import OWN

if TYPE_CHECKING:
    from statestore_client.server.broker.message import Message
    from statestore_client.server.journal import JournalStream

__all__ = ["RetainedPersister"]


@attrs.frozen(eq=False)
class RetainedPersister:
    """Hears from :class:`.Retained` what has changed."""

    _stream: JournalStream

    def put(self, message: Message) -> None:
        """It is its topic's message now."""
        if not message.topic.startswith(OWN):
            self._stream.put(message.topic, MessageRecord(message), message.size)

    def removed(self, topic: str) -> None:
        """The topic has no message any longer."""
        if not topic.startswith(OWN):
            self._stream.remove(topic)
