"""Which callbacks of the application's paho client the state store client needs, and whether it still has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessageInfo

__all__ = ["CALLBACKS", "is_acknowledged", "replaced_callbacks"]

#: Those that are assigned. Ours calls the one that was there before.
CALLBACKS: Final = ("on_connect", "on_disconnect", "on_publish", "on_subscribe")


def is_acknowledged(info: MQTTMessageInfo) -> bool:
    """Whether paho has seen the PUBACK, also of what it took while not connected: of that, its own method raises."""
    return info._published  # noqa: SLF001 - see above


def replaced_callbacks(
    client: Client, ours: Mapping[str, Callable[..., Any]], needed: Iterable[str], filters: Iterable[str]
) -> str | None:
    """What to tell the application that has replaced our callbacks, and what to do about it.

    Only of those that are ``needed`` just now: a callback that calls the one that it replaced does no harm, and nobody
    waits for ours then. None if all are as they should be.
    """
    gone = [name for name in needed if getattr(client, name) is not ours[name]]
    kept = client._on_message_filtered  # noqa: SLF001 - paho has no public way to ask
    for topic_filter in filters:
        try:
            callback = kept[topic_filter]
        except KeyError:
            callback = None
        if callback is not ours["on_message"]:
            gone.append(f"the message callback for {topic_filter}")
    if not gone:
        return None
    return (
        f"the application has replaced or removed {', '.join(gone)} of its paho client after over(), and this client "
        f"does not hear of it any longer. Set {', '.join(CALLBACKS)} before over(), or let a new one call the one that "
        "it replaces; take messages with on_message, or message_callback_add() for topics of your own"
    )
