"""Where a replicated server finds the log and the others."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from raft_client import RaftError, RaftSettings
from raft_client.server import NodeSettings
from statestore_client.errors import SettingsError
from statestore_client.server.runtime.replication.cluster_nodes import listening_address, nodes_of
from statestore_client.server.runtime.replication.log_keys import ClusterKeys, LogKeys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["PeerSettings", "ReplicaSettings"]

_MAX_ID_BYTES: Final = 64
_MAX_PORT: Final = 65_535
#: After which another leader of the log is looked for, where each server has a peer of ours: that one says after 50 ms
#: that it has accepted an append, however long its disk takes, and is followed by another one after 0.25 s. Node peers
#: say nothing before it is committed: there it stays at the client's 0.5 s, which are 0.25 s of each outage.
_SILENT_PEER_S: Final = 0.25
_MIN_KEY_BYTES: Final = 16
_EVERYBODY: Final = 0o007


def _urls(value: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(value)


def _is_id(_settings: object, _field: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= _MAX_ID_BYTES or not value.isprintable():
        raise SettingsError(f"the id of a server has 1 to {_MAX_ID_BYTES} bytes, all printable; not {value!r}")


def _is_port(_settings: object, field: attrs.Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_PORT:
        raise SettingsError(f"{field.name} is a port from 0 to 65535, not {value!r}")


def _is_key(_settings: object, _field: attrs.Attribute[bytes], value: object) -> None:
    if not isinstance(value, bytes) or (value and len(value) < _MIN_KEY_BYTES):
        raise SettingsError(f"the key of the replicated servers has at least {_MIN_KEY_BYTES} bytes")


def _is_unspecified(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_address(_settings: object, field: attrs.Attribute[str], value: object) -> None:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if value != "" and not (host and port.isdecimal() and 0 < int(port) <= _MAX_PORT):
        raise SettingsError(f"{field.name} is host:port, not {value!r}")


@attrs.frozen(kw_only=True)
class PeerSettings:
    """A peer of the log in the process of a server: ``id`` is among ``members``, ids with URLs. ``data`` is the data
    directory of the server, ``host`` the address to listen at.
    """

    id: str
    members: tuple[tuple[str, str], ...]
    data: Path
    host: str
    publisher_port: int
    #: With them everything that the peers say and hear is encrypted, and nobody else is let in.
    keys: ClusterKeys | None = None
    #: Changes of its ``raft_client.server.NodeSettings``.
    changes: tuple[tuple[str, float | None], ...] = ()


@attrs.frozen(kw_only=True)
class ReplicaSettings:
    """``log``: URLs of the peers of a ØMQ Raft cluster that belongs to these servers alone. ``id``: of this server,
    different from those of the others. ``cluster``: the name (ident) of the Raft cluster.

    The others connect to ``internal_host:internal_port`` (0 for a free port), and are told ``internal_address`` if
    that is another one, as ``host:port``. ``key`` is a secret that all of them have; empty only on one machine.
    ``log_keys`` if the peers have keys; those of ``log`` must be among them.
    ``peer``: a peer of the log in the process of this server; :meth:`in_cluster` is the way to have one.
    ``awaits_import``: do not begin with an empty log, because a data directory is to be copied into it.

    Raises SettingsError for what cannot work.
    """

    log: tuple[str, ...] = attrs.field(converter=_urls)
    id: str = attrs.field(validator=_is_id)
    cluster: str = ""
    internal_host: str = "127.0.0.1"
    internal_port: int = attrs.field(default=0, validator=_is_port)
    internal_address: str = attrs.field(default="", validator=_is_address)
    key: bytes = attrs.field(default=b"", repr=False, validator=_is_key)
    log_keys: LogKeys | None = None
    peer: PeerSettings | None = None
    awaits_import: bool = False

    def __attrs_post_init__(self) -> None:
        if self.raft.seeds != self.log:
            raise SettingsError(f"the log: {self.log!r} are not URLs")
        if _is_unspecified(self.internal_host) and not self.internal_address:
            raise SettingsError(f"{self.internal_host} is all addresses: say at which one the others find this server")

    @property
    def raft(self) -> RaftSettings:
        """Of the log's client."""
        try:
            settings = RaftSettings(seeds=self.log, cluster=self.cluster)
            return self._with_keys(settings if self.peer is None else settings.evolve(response_timeout=_SILENT_PEER_S))
        except RaftError as error:
            raise SettingsError(f"the log: {error}") from error

    def _with_keys(self, raft: RaftSettings) -> RaftSettings:
        keys = self.log_keys
        if keys is None:
            return raft
        peers, own = dict(keys.peers), keys.own
        if missing := [url for url in self.log if url not in peers]:
            raise SettingsError(f"the log: there is no key of {', '.join(missing)}")
        public, secret = own.public.decode(), own.secret.decode()
        return raft.evolve(curve_peer_keys=peers, curve_public_key=public, curve_secret_key=secret)

    @classmethod
    def in_cluster(
        cls,
        nodes: str | Mapping[str, str],
        *,
        id: str,  # noqa: A002 - as the field
        data: str | os.PathLike[str],
        key: bytes = b"",
        cluster: str = "",
        listen: str = "",
        awaits_import: bool = False,
        log_settings: Mapping[str, float | None] | None = None,
    ) -> ReplicaSettings:
        """Of a server with a peer of the log in its process, as each of ``nodes`` has one: ids with ``host`` or
        ``host:port``, in one text ``a=host,b=host,c=host`` or a mapping. Three to nine, of which more than half must
        run. Each takes three ports, by default 8047 to 8049. The peer's log is in the directory ``data``. ``listen`` is
        the address to listen at, if it is not that of the own host. With a ``key`` all that goes to and from the log is
        encrypted, with keys that are made from it. ``log_settings`` are changes of the peer's
        :class:`raft_client.server.NodeSettings`, such as its time-outs. Raises SettingsError.
        """
        try:
            NodeSettings(peer_id=id, **(log_settings or {}))  # type: ignore[arg-type]  # what they are, it says itself
        except (RaftError, TypeError) as error:
            raise SettingsError(f"settings of the log: {error}") from None
        by_id = nodes_of(nodes)
        own = by_id.get(id)
        if own is None:
            raise SettingsError(f"{id!r} is none of the servers of the cluster: {', '.join(by_id)}")
        urls = {node.id: node.peer_url for node in by_id.values()}
        keys = ClusterKeys.made_from(key, cluster, urls) if key else None
        host = listen.strip("[]") or listening_address(own)
        bracketed = f"[{host}]" if ":" in host else host
        return cls(
            log=tuple(urls.values()),
            id=id,
            cluster=cluster,
            internal_host=host,
            internal_port=own.internal_port,
            internal_address=own.internal_address,
            key=key,
            log_keys=None if keys is None else keys.of_client(urls),
            awaits_import=awaits_import,
            peer=PeerSettings(
                id=id,
                members=tuple(urls.items()),
                data=Path(data),
                host=bracketed,
                publisher_port=own.publisher_port,
                keys=keys,
                changes=tuple((log_settings or {}).items()),
            ),
        )

    @staticmethod
    def log_settings_in(texts: Iterable[str]) -> dict[str, float | None]:
        """For :meth:`in_cluster`, from ``NAME=VALUE`` each, as people write them. Raises SettingsError."""
        try:
            return NodeSettings.changes_in(texts)
        except RaftError as error:
            raise SettingsError(f"--log-setting: {error}") from None

    @classmethod
    def key_in(cls, file: str | Path) -> bytes:
        """The key that a file has, without spaces around it. A group may read it, as that of a mounted secret does.
        Raises SettingsError, also if everybody may.
        """
        try:
            if os.name == "posix" and Path(file).stat().st_mode & _EVERYBODY:
                raise SettingsError(f"the key file {file} can be read by other users: chmod 600 {file}")
            return Path(file).read_bytes().strip()
        except OSError as error:
            raise SettingsError(f"the key file {file} cannot be read: {error.strerror or error}") from error
