"""The keys of one peer: its own pair, and the public keys of all that it talks to, as files in one directory.

::

    1.key            the public key of peer 1; 2.key, 3.key: of the others
    1.key_secret     the key pair of peer 1; on its own machine only, and readable by its user only
    clients/a.key    the public key of a client; the name is for the log
    also/2.key       a second key of peer 2, and also/clients/a.key of a client, while keys are changed: either is let
                     in, and a peer that does not answer to the one is expected to have the other

The files have the format of ZeroMQ certificates, as ``zmq.auth.create_certificates()`` and czmq write them. The
directory is read again while the peer runs: a key that is added counts for connections that begin more than a second
later, and nothing is heard from who has one that was taken away, a second later. The own pair is read once.

Source: ZeroMQ RFC 26 (CurveZMQ), zmq_curve(7).
"""

from __future__ import annotations

import logging
import math
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import zmq
import zmq.auth
from zmq.utils import z85

from raft_client.errors import SettingsError
from raft_client.reports import on_one_line
from raft_client.zmq_messages import check_curve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raft_client.wire.configuration import Peer

logger: Final = logging.getLogger("raft_client.server")

_READ_AGAIN_S: Final = 1.0
_KEY_BYTES: Final = 32
_OTHERS: Final = 0o077
#: The directory of their keys.
CLIENTS: Final = "clients"
_ALSO: Final = "also"


class CurveKeys:
    """The keys in ``folder`` as ``peer_id`` has them. Raises SettingsError, which names the file that is at fault."""

    def __init__(self, folder: Path, peer_id: str) -> None:
        check_curve()
        if not folder.is_dir():
            raise SettingsError(f"the directory of keys {folder} cannot be read: there is none")
        self.folder = folder
        #: The own pair, in Z85.
        self.public_key: bytes
        self.secret_key: bytes
        self.public_key, self.secret_key = _own_pair(folder, peer_id)
        self.peer_id = peer_id
        self._faults: set[str] = set()
        self._read_at = -math.inf
        self._peers: dict[str, bytes] = {}
        self._also: dict[str, bytes] = {}  # second keys of peers
        self._users: dict[bytes, str] = {}
        self._looked_at = -math.inf
        self._is_there: dict[str, bool] = {}  # since then
        for fault in self._read():
            raise SettingsError(fault)
        if self._peers.get(peer_id, self.public_key) != self.public_key:
            raise SettingsError(f"{folder / peer_id}.key is not the public key of the pair in {peer_id}.key_secret")

    @classmethod
    def of_member(cls, folder: Path | None, peer_id: str, members: Iterable[Peer]) -> Self | None:
        """With the keys of all members; None without a folder. Raises SettingsError."""
        if folder is None:
            return None
        keys = cls(folder, peer_id)
        keys.check(member.id for member in members)
        return keys

    @property
    def peer_ids(self) -> frozenset[str]:
        """The peers whose keys are known, and this one."""
        return frozenset(self._peers) | {self.peer_id}

    def of_peer(self, peer_id: str, refused: bytes | None = None) -> bytes | None:
        """The public key, in Z85; None if there is none. Of two the other one, if this one was ``refused``."""
        key = self._peers.get(peer_id)
        return self._also.get(peer_id, key) if refused is not None and refused == key else key

    def check(self, peer_ids: Iterable[str]) -> None:
        """Raises SettingsError if one of these peers has no key."""
        for peer_id in peer_ids:
            if peer_id not in self.peer_ids:
                raise SettingsError(f"there is no {self.folder / peer_id}.key, the public key of peer {peer_id}")

    def user(self, key: bytes) -> str | None:
        """Whose public key this is: the id of a peer; ``clients/NAME``, which no id is; None if it is not known."""
        return self._users.get(key)

    def is_there(self, user: str, now: float) -> bool:
        """Whether the key of this user is there still. Its file is looked for once a second at most."""
        if now >= self._looked_at + _READ_AGAIN_S:
            self._looked_at = now
            self._is_there.clear()
        found = self._is_there.get(user)
        if found is None:
            found = self._is_there[user] = _exists(self.folder / f"{user}.key")
        return found

    def refresh(self, now: float) -> None:
        """Read the directory again, if that was not done in the last second."""
        if now >= self._read_at + _READ_AGAIN_S:
            self._read_at = now
            self.read_again()

    def read_again(self) -> None:
        """At once. What is wrong with a file is logged, once."""
        faults = set(self._read())
        for fault in sorted(faults - self._faults):
            logger.warning("%s", on_one_line(f"peer {self.peer_id}: {fault}; this key is not accepted"))
        self._faults = faults

    def _read(self) -> list[str]:
        """All public keys; what is wrong with some of them."""
        faults: list[str] = []
        self._peers = _public_keys(self.folder, faults)
        clients = _public_keys(self.folder / CLIENTS, faults)
        self._users = {key: f"{CLIENTS}/{name}" for name, key in clients.items()}
        also = self.folder / _ALSO
        second = {each.name: _public_keys(each, faults) for each in (also / CLIENTS, also)}
        self._also = {name: key for name, key in second[_ALSO].items() if name in self._peers}
        self._users |= {key: f"{CLIENTS}/{name}" for name, key in second[CLIENTS].items() if name in clients}
        for folder, keys in ((self.folder, self._peers), (also, self._also)):
            for peer_id, key in keys.items():
                if self._users.get(key, peer_id) != peer_id:
                    faults.append(f"the key in {folder / peer_id}.key is also the key of another name")
                self._users[key] = peer_id
        return faults


def _exists(file: Path) -> bool:
    """Look for the file. One that cannot be looked for counts as gone: the directory may not be read any more."""
    try:
        return file.exists()
    except OSError:
        return False


def _public_keys(folder: Path, faults: list[str]) -> dict[str, bytes]:
    """By name. Only files that are there are opened: names of peers come from the network."""
    found: dict[str, bytes] = {}
    for file in sorted(folder.glob("*.key")):
        try:
            found[file.name.removesuffix(".key")] = _checked(zmq.auth.load_certificate(file)[0])
        except (OSError, ValueError) as error:
            faults.append(_fault(file, error))
    return found


def _own_pair(folder: Path, peer_id: str) -> tuple[bytes, bytes]:
    file = folder / f"{peer_id}.key_secret"
    if file.parent != folder:
        raise SettingsError(f"peer {peer_id!r} cannot have a key file: its id is no name of a file")
    try:
        if os.name == "posix" and file.stat().st_mode & _OTHERS:
            raise SettingsError(f"the secret key in {file} can be read by other users: chmod 600 {file}")
        public, secret = zmq.auth.load_certificate(file)
        if secret is None:
            raise ValueError("it has no secret-key")
        if zmq.curve_public(_checked(secret)) != _checked(public):
            raise ValueError("its public-key does not belong to its secret-key")
    except SettingsError:
        raise
    except (OSError, ValueError) as error:
        raise SettingsError(_fault(file, error)) from None
    return public, secret


def _checked(key: bytes) -> bytes:
    """Raises ValueError, without the key: it may be the secret one."""
    try:
        is_key = len(z85.decode(key)) == _KEY_BYTES
    except (ValueError, KeyError, struct.error):
        is_key = False
    if not is_key:
        raise ValueError("a key in it is not 40 characters of Z85")
    return key


def _fault(file: Path, error: OSError | ValueError) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"the key file {file} cannot be used: {text}"
