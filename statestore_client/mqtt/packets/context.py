"""What the parser of one packet has to know about its connection."""

from __future__ import annotations

import attrs

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets.publish_template import Templates
from statestore_client.mqtt.packets.types import ReasonCode

__all__ = ["Context", "TopicAliases"]


@attrs.define(eq=False)
class TopicAliases:
    """What the peer's topic aliases stand for (MQTT 5.0, 3.3.2.3.4). Invariant: at most ``maximum`` topics are kept."""

    maximum: int
    _topics: dict[int, str] = attrs.field(factory=dict, init=False)

    def resolve(self, alias: int, topic: str, offset: int) -> str:
        """The topic of a message with this alias. ``topic`` is what it says itself, "" for nothing."""
        if alias > self.maximum:
            raise _invalid(f"topic alias {alias}, and {self.maximum} is the maximum", offset)
        if topic:
            self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise _invalid(f"topic alias {alias} has no topic yet", offset)
        return known


def _invalid(text: str, offset: int) -> PacketError:
    return PacketError(text, reason_code=ReasonCode.TOPIC_ALIAS_INVALID, offset=offset)


@attrs.define(eq=False)
class Context:
    """``version`` is None until a CONNECT has said which one it is."""

    version: int | None
    max_user_properties: int
    max_filters: int
    is_from_client: bool = False  # a server reads; it refuses names that a client may see all the same
    wants_messages: bool = False  # IncomingMessage instead of Publish, where that is enough
    aliases: TopicAliases | None = None  # None leaves them in the packets
    templates: Templates = attrs.Factory(Templates)  # of the PUBLISHes before
