"""What a hosted store is to be, as values that are checked once."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.broker.limits import BrokerLimits
from statestore_client.server.checks import kind, number, path
from statestore_client.server.runtime.settings import replica_settings
from statestore_client.server.store import Persistence, StoreLimits
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.protocol import Dialect

if TYPE_CHECKING:
    from statestore_client.server.runtime.replication.settings import ReplicaSettings

#: The client identifier of a host that is given none. Two hosts with one name, on one broker, are a mistake that shows.
CLIENT_ID = "statestore"


@attrs.frozen(kw_only=True)
class HostSettings:
    """A hosted store. Raises InvalidArgumentError for what cannot be used.

    ``connection`` says where the broker is and who the host is there; its ``session_expiry`` is how long requests wait
    there for a host that is away. ``id_property`` is the user property in which the broker says who has published a
    message. With a ``log`` the data is there, and this host is active or stands by. ``metrics_port`` is for figures and
    probes, None for none; ``monitor_port`` for people on this machine, likewise.
    """

    connection: ConnectionSettings = attrs.field(validator=kind(ConnectionSettings))
    id_property: str | None = attrs.field(default=None, validator=kind(str))
    dialect: Dialect = Dialect.SERVICE
    store_limits: StoreLimits | None = attrs.field(default=None, validator=kind(StoreLimits))
    packet_bytes: int = attrs.field(default=BrokerLimits().packet_bytes, validator=number(20))
    data: str | os.PathLike[str] | None = attrs.field(default=None, validator=path)
    persist: str | Collection[str] = "all"
    log: ReplicaSettings | None = attrs.field(default=None, validator=replica_settings)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    monitor_port: int | None = None
    #: What ``persist`` says.
    persistence: Persistence = attrs.field(init=False)

    @persistence.default
    def _persistence(self) -> Persistence:
        return Persistence.of(self.persist)

    def __attrs_post_init__(self) -> None:
        if self.data is None and self.persist != "all":
            raise InvalidArgumentError(f"persist={self.persist!r} says what data keeps; give a directory as data, too")
        if self.log is not None and self.data is not None:
            raise InvalidArgumentError("with a log everything is in the log: give no data")
        if self.connection.driver != "native":
            raise InvalidArgumentError("a hosted store needs driver='native'")

    @property
    def client_id(self) -> str:
        """The host's own."""
        return self.connection.client_id or CLIENT_ID
