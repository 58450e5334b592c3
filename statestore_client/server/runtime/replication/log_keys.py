"""The keys of CURVE with which a server reaches the peers of its log: read from files, or made from one secret.

With ``--cluster`` all keys are made from the secret that the servers share. Each knows those of the others without
another file, and writes what its own peer, and ``zmqraft``, read as files::

    keys/a.key, keys/b.key, …       the public keys of the peers
    keys/a.key_secret               the pair of this server's own peer
    keys/clients/servers.key        the public key of all servers, as clients of the log
    keys/zmqraft.env                that pair, and where the peers are, as variables of the environment

Source: ``docs/decisions/0057-keys-of-a-cluster.md``.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final, Self

import attrs

from statestore_client.curve_keys import (
    KeyPair,
    read_pair,
    read_public_key,
    write_pair,
    write_private,
    write_public_key,
)
from statestore_client.errors import DataDirectoryError, SettingsError
from statestore_client.server.runtime.replication.cluster_secret import derive

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ClusterKeys", "LogKeys"]

#: Keys for another purpose, such as the codes of the servers' internal addresses, cannot be told from these.
_SALT: Final = b"statestore keys of a cluster's log 1"
_CLIENT: Final = "servers"


@attrs.frozen
class LogKeys:
    """``peers``: the URL of each peer and its public key; ``own``: the pair of the client."""

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
    """All pairs of a cluster: of its peers, by id, and of the servers as clients of the log."""

    peers: tuple[tuple[str, KeyPair], ...]
    client: KeyPair

    @classmethod
    def made_from(cls, secret: bytes, cluster: str, ids: Mapping[str, str]) -> Self:
        """The same for everybody who has the secret, and names the cluster and its peers in the same way."""

        def pair(kind: str, name: str) -> KeyPair:
            info = b"\0".join((kind.encode(), cluster.encode(), name.encode(), b""))
            return KeyPair.of_secret(derive(_SALT, secret, info))

        return cls(tuple((each, pair("peer", each)) for each in ids), pair("client", _CLIENT))

    def of_client(self, urls: Mapping[str, str]) -> LogKeys:
        """What a client of the log needs; ``urls`` are those of the peers, by id."""
        return LogKeys(tuple((urls[each], pair.public.decode()) for each, pair in self.peers), self.client)

    def write(self, folder: Path, own: str, cluster: str, urls: Mapping[str, str]) -> None:
        """The files for the peer ``own``, and for ``zmqraft``, which finds the peers at ``urls``, by id.

        Raises DataDirectoryError if there are files of another secret: a server that runs may use them.
        """
        pair = dict(self.peers)[own]
        try:
            self._check(folder, own, pair)
            (folder / "clients").mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            for each, of_peer in self.peers:
                write_public_key(folder / f"{each}.key", of_peer)
            write_public_key(folder / "clients" / f"{_CLIENT}.key", self.client)
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
        if found != pair:
            raise DataDirectoryError(
                f"the keys in {folder} were made from another secret, or for another cluster. If the secret has "
                "changed at all servers, stop them all and remove the directory of keys of each"
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
