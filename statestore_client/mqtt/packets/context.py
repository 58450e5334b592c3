"""What the parser of one packet has to know about its connection."""

from __future__ import annotations

import attrs

from statestore_client.mqtt.packets.template import Templates

__all__ = ["Context"]


@attrs.define(eq=False)
class Context:
    """``version`` is None until a CONNECT has said which one it is."""

    version: int | None
    max_user_properties: int
    max_filters: int
    wants_messages: bool = False  # IncomingMessage instead of Publish, where that is enough
    templates: Templates = attrs.Factory(Templates)  # of the PUBLISHes before
