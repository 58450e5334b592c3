"""Where a replicated server finds the log and the others."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import attrs

from raft_client import RaftError, RaftSettings
from raft_client._common.hosts import is_local
from raft_client.server import NodeSettings
from statestore_client.curve_keys import (
    KeyPair,
    read_pair,
    read_public_key,
    write_pair,
    write_private,
    write_public_key,
)
from statestore_client.errors import DataDirectoryError, SettingsError
from statestore_client.server.runtime.replication.internal import derive, secrets_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# -- cluster nodes -----------------------------------------------------------------------------------------------------
#
# The machines of a cluster of which each has a server and a peer of the log: ``a=host,b=host,c=host:port``.
#
# A machine has three ports, one after the other: its peer takes requests at the first one and broadcasts from the
# second one; its server listens at the third one for the other servers.


DEFAULT_PORT: Final = 8047
_PORTS: Final = 3
_LAST_PORT: Final = 65_535
#: With two, the loss of any one ends everything.
_FEWEST: Final = 3
_MOST: Final = 9
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
_PLACE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z][0-9A-Za-z._-]*)(?::([0-9]{1,5}))?")


@attrs.frozen
class ClusterNode:
    """``host`` is in brackets if it is an IPv6 address."""

    id: str
    host: str
    port: int

    @property
    def peer_url(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def publisher_port(self) -> int:
        return self.port + 1

    @property
    def internal_port(self) -> int:
        return self.port + 2

    @property
    def internal_address(self) -> str:
        return f"{self.host}:{self.internal_port}"

    @property
    def is_local(self) -> bool:
        """Whether only processes of the same machine find it."""
        return is_local(self.host)


def nodes_of(nodes: str | Mapping[str, str]) -> dict[str, ClusterNode]:
    """By id. Raises SettingsError for what no cluster can be."""
    if isinstance(nodes, str):
        entries = [(name.strip(), host.strip()) for name, _, host in (each.partition("=") for each in nodes.split(","))]
    else:
        entries = list(nodes.items())
    found = [_node(*each) for each in entries]
    by_id = {node.id: node for node in found}
    if len(by_id) < len(found):
        raise SettingsError("two servers of the cluster have the same id")
    if not _FEWEST <= len(found) <= _MOST:
        raise SettingsError(
            f"a cluster has {_FEWEST} to {_MOST} servers, not {len(found)}: it goes on while more than half of them run"
        )
    if len({node.is_local for node in found}) > 1:
        raise SettingsError("some hosts of the cluster are this machine only: say how all of them find each other")
    for one, other in ((one, other) for one in found for other in found if one.id < other.id):
        if one.host == other.host and abs(one.port - other.port) < _PORTS:
            raise SettingsError(
                f"{one.id} and {other.id} would share ports of {one.host}: each takes {_PORTS}, from the one given"
            )
    return by_id


def _node(name: object, place: object) -> ClusterNode:
    parts = _PLACE.fullmatch(place) if isinstance(place, str) else None
    if not isinstance(name, str) or not _ID.fullmatch(name) or parts is None:
        raise SettingsError(
            f"{name}={place} is not ID=HOST or ID=HOST:PORT, with an id of letters, digits, '.', '_' and '-'"
        )
    port = DEFAULT_PORT if parts[2] is None else int(parts[2])
    if not 0 < port <= _LAST_PORT - (_PORTS - 1):
        raise SettingsError(
            f"{name}={place}: the port is from 1 to {_MAX_PORT - _PORTS + 1}, as the next two are taken, too"
        )
    return ClusterNode(name, parts[1], port)


def listening_address(node: ClusterNode) -> str:
    """The address of this machine that the others mean. Raises SettingsError if there is none."""
    host = node.host.strip("[]")
    try:
        address = str(socket.getaddrinfo(host, node.port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise SettingsError(f"the own host {host} has no address: {error.strerror or error}") from error
    if is_local(address) and not node.is_local:
        raise SettingsError(f"{host} is {address} on this machine, where others do not find it: say where to listen")
    return address


# -- log keys ----------------------------------------------------------------------------------------------------------
#
# The keys of CURVE with which a server reaches the peers of its log: read from files, or made from one secret.
#
# With ``--cluster`` all keys are made from the secret that the servers share. Each knows those of the others without
# another file, and writes what its own peer, and ``zmqraft``, read as files::
#
#     keys/a.key, keys/b.key, …       the public keys of the peers
#     keys/a.key_secret               the pair of this server's own peer
#     keys/clients/servers.key        the public key of all servers, as clients of the log
#     keys/zmqraft.env                that pair, and where the peers are, as variables of the environment
#     keys/also/…                     the public keys that are made from a second secret, while it is changed
#
# Whose own pair is of which secret is known to nobody else meanwhile, so who dials a peer tries both of its keys.
#
# Source: ``docs/decisions/keys-and-rights.md``.


#: Keys for another purpose, such as the codes of the servers' internal addresses, cannot be told from these.
_SALT: Final = b"statestore keys of a cluster's log 1"
_CLIENT: Final = "servers"
_ALSO: Final = "also"


@attrs.frozen
class LogKeys:
    """``peers``: the URL of each peer and its public key, or twice with two; ``own``: the pair of the client."""

    peers: tuple[tuple[str, str], ...]
    own: KeyPair

    @classmethod
    def read(cls, folder: Path, name: str, peers: Mapping[str, str]) -> Self:
        """From a directory, as peers have them: ``NAME.key_secret`` of this client, and ``ID.key`` of each peer, whose
        ids and URLs are ``peers``. Raises SettingsError, which names the file that is at fault.
        """
        own = folder / f"{name}.key_secret"
        for file in (own, *(folder / f"{each}.key" for each in peers)):
            if file.parent != folder:
                raise SettingsError(f"{file.stem!r} cannot have a key file: no file can have its name")
        keys = tuple((url, read_public_key(folder / f"{each}.key").decode()) for each, url in peers.items())
        return cls(keys, read_pair(own))


@attrs.frozen
class ClusterKeys:
    """All pairs of a cluster: of its peers, by id, and of the servers as clients of the log. ``also``: those that are
    made from a second secret.
    """

    peers: tuple[tuple[str, KeyPair], ...]
    client: KeyPair
    also: ClusterKeys | None = None

    @classmethod
    def made_from(cls, key: bytes, cluster: str, ids: Mapping[str, str]) -> Self:
        """The same for everybody who has the secret, or both, and names the cluster and its peers in the same way."""
        first, *rest = secrets_in(key)
        also = cls._made_from_one(rest[0], cluster, ids, None) if rest else None
        return cls._made_from_one(first, cluster, ids, also)

    @classmethod
    def _made_from_one(cls, secret: bytes, cluster: str, ids: Iterable[str], also: ClusterKeys | None) -> Self:
        def pair(kind: str, name: str) -> KeyPair:
            info = b"\0".join((kind.encode(), cluster.encode(), name.encode(), b""))
            return KeyPair.of_secret(derive(_SALT, secret, info))

        return cls(tuple((each, pair("peer", each)) for each in ids), pair("client", _CLIENT), also)

    def of_client(self, urls: Mapping[str, str]) -> LogKeys:
        """What a client of the log needs; ``urls`` are those of the peers, by id."""
        second = () if self.also is None else self.also.of_client(urls).peers
        return LogKeys((*((urls[each], pair.public.decode()) for each, pair in self.peers), *second), self.client)

    def write(self, folder: Path, own: str, cluster: str, urls: Mapping[str, str]) -> None:
        """The files for the peer ``own``, and for ``zmqraft``, which finds the peers at ``urls``, by id.

        Raises DataDirectoryError if there are files of another secret: a server that runs may use them.
        """
        pair = dict(self.peers)[own]
        try:
            self._check(folder, own, pair)
            _write_public_keys(folder, self)
            folder.chmod(0o700)
            if self.also is None:
                shutil.rmtree(folder / _ALSO, ignore_errors=True)
            else:
                _write_public_keys(folder / _ALSO, self.also)
            write_pair(folder / f"{own}.key_secret", pair)
            write_private(folder / "zmqraft.env", self._variables(cluster, urls))
        except OSError as error:
            raise DataDirectoryError(f"the keys in {folder} cannot be written: {error.strerror or error}") from error

    def _check(self, folder: Path, own: str, pair: KeyPair) -> None:
        file = folder / f"{own}.key_secret"
        if not file.exists():
            return
        try:
            found = read_pair(file)
        except SettingsError as error:
            raise DataDirectoryError(f"{error.message}. Remove it, and it is made anew") from error
        if found not in (pair, None if self.also is None else dict(self.also.peers)[own]):
            raise DataDirectoryError(
                f"the keys in {folder} were made from another secret, or for another cluster. If the secret has "
                "changed at all servers, stop them all and remove the directory of keys of each; statestore ha "
                "rotate-secret changes it while they run"
            )

    def _variables(self, cluster: str, urls: Mapping[str, str]) -> str:
        variables = {
            "ZMQRAFT_SEEDS": ",".join(urls.values()),
            "ZMQRAFT_CLUSTER": cluster,
            "ZMQRAFT_CURVE_PEER_KEYS": ",".join(f"{url}={key}" for url, key in self.of_client(urls).peers),
            "ZMQRAFT_CURVE_PUBLIC_KEY": self.client.public.decode(),
            "ZMQRAFT_CURVE_SECRET_KEY": self.client.secret.decode(),
        }
        lines = (f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
        return "# For zmqraft: set -a; . this file\n" + "".join(lines)


def _write_public_keys(folder: Path, keys: ClusterKeys) -> None:
    (folder / "clients").mkdir(parents=True, exist_ok=True)
    for each, of_peer in keys.peers:
        write_public_key(folder / f"{each}.key", of_peer)
    write_public_key(folder / "clients" / f"{_CLIENT}.key", keys.client)


# -- settings ----------------------------------------------------------------------------------------------------------


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
    if not isinstance(value, bytes) or (value and min(map(len, secrets_in(value))) < _MIN_KEY_BYTES):
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
    that is another one, as ``host:port``. ``key`` is a secret that all of them have, or the two that a file has while
    it is changed; empty only on one machine.
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
        peers, own = tuple(dict.fromkeys(keys.peers)), keys.own
        if missing := [url for url in self.log if url not in dict(peers)]:
            raise SettingsError(f"the log: there is no key of {', '.join(missing)}")
        public, secret = own.public.decode(), own.secret.decode()
        text = ",".join(f"{url}={key}" for url, key in peers)  # a URL may be there twice
        return raft.evolve(curve_peer_keys=text, curve_public_key=public, curve_secret_key=secret)

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
