"""Who asks: MQTT does not tell a subscriber who has published, so a request says it itself.

The client identifier is taken from one of two places:

* the response topic, ``clients/ID/...``, which all official SDKs use. The broker's access rules make it worth
  something: who may subscribe to ``clients/%c/#`` only hears no answer to another client's name. ``ID`` is the client
  identifier, or its bytes in upper-case hexadecimal (the Go SDK); then ``__srcId`` says which of the two it is;
* a user property that the broker itself adds to each message, where the host was told its name. The last one counts:
  a client may have sent one as well.

A request that says neither is answered, and has the name of its response topic. Such a name begins with a slash, which
no level of a topic contains, so that it is never a client's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from statestore_client.wire.protocol import SOURCE_ID

if TYPE_CHECKING:
    from statestore_client.mqtt.packets.types import PublishProperties, UserProperties

_CLIENTS: Final = "clients"
_NOBODY: Final = "/"

#: What a KEYNOTIFY is told that does not say whose it is.
NO_ID: Final = (
    "the store cannot tell who observes: use a response topic clients/ID/... with the client identifier, "
    "which has no slash, as its second level"
)


def asker_of(properties: PublishProperties, added: str | None) -> str:
    """The client identifier, or a name that :func:`is_nobody`. ``added`` is the user property of the broker."""
    users, topic = properties.user_properties, properties.response_topic or ""
    if added is not None:
        named = next((value for name, value in reversed(users) if name == added), "")
        return named if named and _NOBODY not in named else _NOBODY + topic
    return _by_topic(topic, _source(users))


def is_nobody(asker: str) -> bool:
    """Whether a request did not say whose it is."""
    return asker.startswith(_NOBODY)


def _source(users: UserProperties) -> str | None:
    return next((value for name, value in users if name == SOURCE_ID), None)


@lru_cache(maxsize=1024)
def _by_topic(topic: str, source: str | None) -> str:
    """Remembered, because every request of a client names the same two."""
    first, _, rest = topic.partition("/")
    level, slash, _ = rest.partition("/")
    if first != _CLIENTS or not level or not slash or (source is not None and _NOBODY in source):
        return _NOBODY + topic
    if source is not None and source != level and source.encode().hex().upper() == level:
        return source
    return level
