"""What ``over()`` takes: a paho client that can be shared, and the few settings that are left to choose."""

from __future__ import annotations

from typing import Final

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.settings import ConnectionSettings, SharedOptions

__all__ = ["client_id_of", "shared_settings"]

#: What a client over a shared connection may choose; the rest is the application's.
_OPTIONS: Final = SharedOptions.__optional_keys__


def client_id_of(paho_client: object) -> str:
    """The client id of a paho client that can be shared; :class:`InvalidArgumentError` says why one cannot."""
    if not isinstance(paho_client, Client):
        raise InvalidArgumentError(f"over() takes a paho.mqtt.client.Client, not {type(paho_client).__name__}")
    if paho_client.protocol != MQTTProtocolVersion.MQTTv5:
        raise InvalidArgumentError("the state store needs MQTT 5: make the paho client with protocol=MQTTv5")
    if paho_client.callback_api_version != CallbackAPIVersion.VERSION2:
        raise InvalidArgumentError("make the paho client with CallbackAPIVersion.VERSION2")
    client_id = paho_client._client_id.decode()  # noqa: SLF001 - paho has no public way to ask
    if not client_id:
        raise InvalidArgumentError("the paho client has no client id; the state store's answers are addressed to it")
    return client_id


def shared_settings(paho_client: Client, options: SharedOptions) -> ConnectionSettings:
    """Settings that name the application's broker, with the options that are left to choose."""
    if refused := sorted(set(options) - _OPTIONS):
        raise SettingsError(
            f"{', '.join(refused)}: the paho client decides that; over() takes {', '.join(sorted(_OPTIONS))}"
        )
    # The client id is left out: a second connection made from these settings would take the first one over.
    return ConnectionSettings(host=paho_client.host or "paho", port=paho_client.port or 1883, driver="paho", **options)
