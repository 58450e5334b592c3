"""Passwords: a file of users and salted hashes.

One user per line, ``#`` begins a comment::

    pump:$scrypt$ln=14,r=8,p=1$<salt>$<hash>

The part behind the colon is the usual notation for password hashes: the function (RFC 7914) with its costs, then salt
and hash in base 64. ``statestore passwd`` writes such files.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from raft_client._common.durable_files import replace_file
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.server.checks import check_kind
from statestore_client.server.runtime.security.files import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Binary logarithm of scrypt's N: 16 MiB and some 40 ms for each password that is tried.
_COST: Final = 14
_BLOCK_SIZE: Final = 8
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32

#: A file must neither make guessing cheap nor a login take minutes or gigabytes.
_COSTS: Final = range(10, 18)
_BLOCK_SIZES: Final = range(1, 17)
_PARALLEL: Final = range(1, 17)

_HASH: Final = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([\w+/]{11,86}=*)\$([\w+/]{43}=?)", re.ASCII
)
_LONGEST_USER: Final = 1024


@attrs.frozen
class PasswordHash:
    """One line's right half. The repr shows no hash."""

    cost: int
    block_size: int
    parallel: int
    salt: bytes = attrs.field(repr=False)
    digest: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, password: bytes, *, cost: int = _COST) -> PasswordHash:
        """With a new salt. Raises InvalidArgumentError for a password with a NUL, which never matches."""
        if b"\0" in password:
            raise InvalidArgumentError("a password has no NUL")
        salt = os.urandom(_SALT_BYTES)
        return cls(cost, _BLOCK_SIZE, 1, salt, _scrypt(password, salt, cost, _BLOCK_SIZE, 1))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Raises SettingsError that says what is wrong, without the text."""
        match = _HASH.fullmatch(text)
        if match is None:
            raise SettingsError("this is not a scrypt hash; write the line with `statestore passwd`")
        cost, block_size, parallel = (int(number) for number in match.group(1, 2, 3))
        if cost not in _COSTS or block_size not in _BLOCK_SIZES or parallel not in _PARALLEL:
            raise SettingsError("the costs of this hash are out of range: ln from 10 to 17, r and p from 1 to 16")
        return cls(cost, block_size, parallel, _unbase64(match[4]), _unbase64(match[5]))

    def __str__(self) -> str:
        salt, digest = b64encode(self.salt).decode(), b64encode(self.digest).decode()
        return f"$scrypt$ln={self.cost},r={self.block_size},p={self.parallel}${salt.rstrip('=')}${digest.rstrip('=')}"

    def matches(self, password: bytes) -> bool:
        """Takes its time, and the same time for every password. One with a NUL is never right: HMAC, with which scrypt
        begins, fills keys up with them (RFC 2104), so that they would not count at the end.
        """
        tried = _scrypt(password, self.salt, self.cost, self.block_size, self.parallel)
        return hmac.compare_digest(tried, self.digest) and b"\0" not in password


class Passwords:
    """Users and their hashes, reloaded when the file changes.

    A password that was right is remembered as a keyed hash of this process, so that ten thousand clients can reconnect
    at once. That tells strangers nothing: only who knows the password gets the quick answer.
    """

    def __init__(self, hashes: Mapping[str, PasswordHash], *, file: WatchedFile | None = None) -> None:
        self._file = file
        self._key = os.urandom(32)
        self._verified: dict[str, bytes] = {}
        self._adopt(dict(hashes))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Passwords:
        """Read a file. Raises SettingsError that names file and line."""
        file = WatchedFile(path)
        return cls(read_passwords(file.read(), str(file.path)), file=file)

    @classmethod
    def given(cls, passwords: Mapping[str, str]) -> Passwords:
        """Passwords in clear, for tests. They are in this process's memory anyway: no cost is spent on hiding them."""
        for each in (*passwords, *passwords.values()):
            check_kind("each of the users and passwords", each, str, wanted="a text")
        return cls({user: PasswordHash.of(password.encode(), cost=1) for user, password in passwords.items()})

    def _adopt(self, hashes: dict[str, PasswordHash]) -> None:
        costliest = max(hashes.values(), key=lambda h: (h.cost, h.block_size, h.parallel), default=None)
        if costliest is None:
            costliest = PasswordHash(_COST, _BLOCK_SIZE, 1, b"", b"")
        #: What a password is compared with when there is no such user: it takes as long, and nothing matches.
        self._decoy = attrs.evolve(costliest, salt=os.urandom(_SALT_BYTES), digest=os.urandom(_HASH_BYTES))
        self._hashes = hashes
        self._verified = {}

    def remembers(self, user: str, password: bytes) -> bool:
        """Whether this password was right before. Quick."""
        known = self._verified.get(user)
        return known is not None and hmac.compare_digest(known, self._fingerprint(user, password))

    def verify(self, user: str, password: bytes) -> bool:
        """Whether this is the user's password. Slow on purpose; unknown users take as long as known ones."""
        hashes = self._hashes
        known = hashes.get(user)
        is_right = (known or self._decoy).matches(password)
        if known is None or not is_right:
            return False
        if hashes is self._hashes:  # not reloaded meanwhile, in the thread of the event loop
            self._verified[user] = self._fingerprint(user, password)
        return True

    def refresh(self) -> frozenset[str] | None:
        """Read the file again if it has changed: the users that are gone. None if nothing has changed.

        Raises SettingsError for a file with mistakes; then everything stays as it was.
        """
        if self._file is None or not self._file.has_changed():
            return None
        before = self._hashes
        self._adopt(read_passwords(self._file.read(), str(self._file.path)))
        return frozenset(before.keys() - self._hashes.keys())

    def _fingerprint(self, user: str, password: bytes) -> bytes:
        return hashlib.blake2b(user.encode() + b"\0" + password, key=self._key).digest()


def read_passwords(text: str, source: str) -> dict[str, PasswordHash]:
    """Users and hashes. Raises SettingsError that names ``source`` and line."""
    hashes: dict[str, PasswordHash] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, rest = line.rstrip().partition(":$")
        try:
            if not colon:
                raise SettingsError("a line is a user, a colon and a hash")
            check_user(user)
            if user in hashes:
                raise SettingsError(f"user {user!r} has a line already")
            hashes[user] = PasswordHash.parse(f"${rest}")
        except InvalidArgumentError as error:
            raise SettingsError(f"{source}, line {number}: {error}") from None
    return hashes


def check_user(user: str) -> None:
    """Raises InvalidArgumentError for a name that a line could not hold."""
    if not user or user != user.strip() or user.startswith("#") or ":$" in user or not user.isprintable():
        raise InvalidArgumentError(f"{user!r} is not a name for a user")
    if len(user.encode()) > _LONGEST_USER:
        raise InvalidArgumentError(f"the name of a user has at most {_LONGEST_USER} bytes")


def _scrypt(password: bytes, salt: bytes, cost: int, block_size: int, parallel: int) -> bytes:
    memory = 128 * block_size * ((1 << cost) + parallel + 2)  # what the function needs (RFC 7914, 5), to the byte
    return hashlib.scrypt(
        password, salt=salt, n=1 << cost, r=block_size, p=parallel, maxmem=memory + (1 << 20), dklen=_HASH_BYTES
    )


def _unbase64(text: str) -> bytes:
    text = text.rstrip("=")
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise SettingsError("the salt or the hash is not base64") from None


# -- password file -----------------------------------------------------------------------------------------------------
#
# Changing a file of passwords.


def set_password(path: Path, user: str, password: bytes) -> None:
    """Give a user a password; make the file if there is none.

    Raises InvalidArgumentError for a name or an empty password, SettingsError for a file with mistakes, OSError.
    """
    check_user(user)
    if not password:
        raise InvalidArgumentError("an empty password protects nothing")
    lines = _lines_of_others(path, user)
    _replace(path, [*lines, f"{user}:{PasswordHash.of(password)}"])


def remove_user(path: Path, user: str) -> bool:
    """Take a user out; False if there is none of this name. Raises as :func:`set_password`."""
    if user not in read_passwords(WatchedFile(path).read(), str(path)):
        return False
    _replace(path, _lines_of_others(path, user))
    return True


def _lines_of_others(path: Path, user: str) -> list[str]:
    """With comments and blank lines. A file with mistakes is left to people."""
    if not path.exists():
        return []
    text = WatchedFile(path).read()
    read_passwords(text, str(path))
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line for line in lines if line.startswith("#") or line.partition(":$")[0] != user]


def _replace(path: Path, lines: list[str]) -> None:
    replace_file(path, "".join(f"{line}\n" for line in lines).encode())
