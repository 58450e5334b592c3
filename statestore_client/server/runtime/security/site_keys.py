"""The keys of one site: its own pair, and the public keys of all that it talks to, as files in one directory.

::

    bonn.key            the public key of the site bonn; oslo.key, rome.key: of the others
    bonn.key_secret     the key pair of the site bonn; on its own machine only, and readable by its user only
    clients/a.key       the public key of a client; the name is for people
    also/oslo.key       a second key of oslo, and also/clients/a.key of a client, while keys are changed: either is let
                        in, and where the one does not answer the other is expected

The directory is that of a peer of a Raft cluster, with names of sites in place of ids. It is read again while the site
runs: a key that is added or taken away counts for connections that begin more than a second later. The own pair is read
once.

Source: ``docs/decisions/keys-and-rights.md``.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from statestore_client.curve_keys import check_curve, read_pair, read_public_key
from statestore_client.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from statestore_client.curve_keys import KeyPair

logger: Final = logging.getLogger("statestore_client.server")

_READ_AGAIN_S: Final = 1.0
_CLIENTS: Final = "clients"
_ALSO: Final = "also"


class SiteKeys:
    """The keys in ``folder`` as the site ``name`` has them. Raises SettingsError, which names the file at fault."""

    def __init__(self, folder: Path, name: str) -> None:
        check_curve()
        if not folder.is_dir():
            raise SettingsError(f"the directory of keys {folder} cannot be read: there is none")
        own = folder / f"{name}.key_secret"
        if own.parent != folder:
            raise SettingsError(f"site {name!r} cannot have a key file: no file can have its name")
        self.folder = folder
        self.name = name
        self.pair: KeyPair = read_pair(own)
        self._faults: set[str] = set()
        self._read_at = -math.inf
        self._sites: dict[str, bytes] = {}
        self._also: dict[str, bytes] = {}  # second keys of sites
        self._users: dict[bytes, str] = {}
        for fault in self._read():
            raise SettingsError(fault)
        if self._sites.get(name, self.pair.public) != self.pair.public:
            raise SettingsError(f"{folder / name}.key is not the public key of the pair in {name}.key_secret")

    def of_site(self, name: str, refused: bytes | None = None) -> bytes | None:
        """The public key, in Z85; None if there is none. Of two the other one, if this one was ``refused``."""
        key = self._sites.get(name)
        return self._also.get(name, key) if refused is not None and refused == key else key

    def user(self, key: bytes) -> str | None:
        """The name of the site that has this public key; empty: a client has it; None: it is not known."""
        return self._users.get(key)

    def refresh(self, now: float) -> None:
        """Read the directory again, if that was not done in the last second. What is wrong is logged, once."""
        if now < self._read_at + _READ_AGAIN_S:
            return
        self._read_at = now
        faults = set(self._read())
        for fault in sorted(faults - self._faults):
            logger.warning("site %s: %s; this key is not accepted", self.name, fault)
        self._faults = faults

    def _read(self) -> list[str]:
        """All public keys; what is wrong with some of them."""
        faults: list[str] = []
        self._sites, clients = (_public_keys(each, faults) for each in (self.folder, self.folder / _CLIENTS))
        also = self.folder / _ALSO
        second = _public_keys(also / _CLIENTS, faults)
        self._users = dict.fromkeys((*clients.values(), *(second[name] for name in second.keys() & clients)), "")
        self._also = {name: key for name, key in _public_keys(also, faults).items() if name in self._sites}
        for folder, keys in ((self.folder, self._sites), (also, self._also)):
            for name, key in keys.items():
                if self._users.get(key, name) != name:
                    faults.append(f"the key in {folder / name}.key is also the key of another name")
                self._users[key] = name
        return faults


def _public_keys(folder: Path, faults: list[str]) -> dict[str, bytes]:
    """By name. Only files that are there are opened: names of sites come from the network."""
    found: dict[str, bytes] = {}
    for file in sorted(folder.glob("*.key")):
        try:
            found[file.name.removesuffix(".key")] = read_public_key(file)
        except SettingsError as error:
            faults.append(str(error))
    return found
