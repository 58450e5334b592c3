"""Choose the driver that the settings name: the only module that knows which there are.

Each is imported where it is used: paho takes 80 ms, and a client needs one driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.errors import SettingsError
from statestore_client.settings import ConnectionSettings, SharedOptions

if TYPE_CHECKING:
    from statestore_client.mqtt.driver import AioConnector, OpenSocket, SyncConnector
    from statestore_client.mqtt.paho_driver import PahoClient, SharedConnector


def sync_connector(
    settings: ConnectionSettings, *, client_id: str, open_socket: OpenSocket | None = None
) -> SyncConnector:
    """The connector for a thread, of the kind that the settings name."""
    if settings.driver == "native":
        from statestore_client.mqtt.native import NativeSyncConnector  # a client imports what it uses

        return NativeSyncConnector(settings, client_id=client_id, open_socket=open_socket)
    _refuse_open_socket(open_socket)
    from statestore_client.mqtt import paho_driver  # paho takes 80 ms to import

    return paho_driver.OwnedConnector(settings, client_id=client_id)


def aio_connector(
    settings: ConnectionSettings, *, client_id: str, open_socket: OpenSocket | None = None
) -> AioConnector:
    """The connector for an event loop, of the kind that the settings name."""
    if settings.driver == "native":
        from statestore_client.mqtt.native_aio import NativeAioConnector  # a client imports what it uses

        return NativeAioConnector(settings, client_id=client_id, open_socket=open_socket)
    _refuse_open_socket(open_socket)
    from statestore_client.mqtt import paho_driver  # paho takes 80 ms to import

    return paho_driver.PahoAioConnector(paho_driver.OwnedConnector(settings, client_id=client_id))


def share_sync(paho_client: PahoClient, options: SharedOptions) -> tuple[str, ConnectionSettings, SyncConnector]:
    """Client id, settings and connector for a thread that shares the application's paho client."""
    return _share(paho_client, options)


def share_aio(paho_client: PahoClient, options: SharedOptions) -> tuple[str, ConnectionSettings, AioConnector]:
    """Client id, settings and connector for an event loop that shares the application's paho client."""
    client_id, settings, connector = _share(paho_client, options)
    from statestore_client.mqtt.paho_driver import PahoAioConnector

    return client_id, settings, PahoAioConnector(connector)


def _share(paho_client: PahoClient, options: SharedOptions) -> tuple[str, ConnectionSettings, SharedConnector]:
    from statestore_client.mqtt import paho_driver

    client_id = paho_driver.client_id_of(paho_client)
    settings = paho_driver.shared_settings(paho_client, options)
    return client_id, settings, paho_driver.SharedConnector(paho_client, settings)


def _refuse_open_socket(open_socket: OpenSocket | None) -> None:
    if open_socket is not None:
        raise SettingsError("open_socket needs driver='native': paho opens its sockets itself")
