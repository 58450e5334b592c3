"""Files that say who may do what, and that change while the server runs."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.errors import SettingsError
from statestore_client.server.access import RuleSet
from statestore_client.server.checks import check_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore_client.server.access import ClientPermissions

#: A file that is missing at as many looks, which are a second apart, is not being replaced.
_LOOKS: Final = 5


@attrs.frozen
class _State:
    """What tells one state of a file from another."""

    device: int
    inode: int
    size: int
    written_ns: int
    changed_ns: int  # with its mode and its owner
    has_name: bool  # in a directory


class WatchedFile:
    """A text file, read again when it is another one than before, or was written or given another owner or mode.

    A file that is written in place is seen half-written for a moment, and is then read twice. Better is to write
    another one and rename it, as ``statestore passwd`` does, or to change a link on the way to it, as Kubernetes does.

    Where the file is mounted alone, and not its directory, nothing of that is seen: the mount keeps the old file, which
    has no name any more.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self._state: _State | None = None
        self._had_name = False  # some file systems count no names
        self._missing = 0  # at so many looks

    def read(self) -> str:
        """The text. Raises SettingsError that names the file."""
        self._state = self._look()
        self.check_mount()
        try:
            return self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.path} cannot be read: {error}") from error

    def has_changed(self, *, remember: bool = False) -> bool:
        """Whether it was replaced or written since it was read (or since ``remember``, for files that others read).

        A file that is missing is being replaced; if it stays away for some looks, that is told once, as a change.
        """
        state = self._look()
        self._missing = self._missing + 1 if state is None else 0
        if self._missing == _LOOKS:
            return True
        has_changed = state is not None and state != self._state
        if has_changed and remember:
            self._state = state
        return has_changed

    def check_mount(self) -> None:
        """Raises SettingsError if what was seen last is an old file that only a mount keeps."""
        if self._had_name and self._state is not None and not self._state.has_name:
            raise SettingsError(
                f"{self.path} was replaced or removed where it is mounted from, and a mount of the file alone keeps "
                "the old one: mount its directory, or start again"
            )

    def _look(self) -> _State | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        has_name = found.st_nlink > 0
        self._had_name = self._had_name or has_name
        return _State(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, has_name)


# -- access rules ------------------------------------------------------------------------------------------------------
#
# Access rules of a file, read again when it changes.


class AccessRules:
    """A file's rules. ``AccessRules.parse(text)`` makes them without a file, :meth:`load` with one."""

    def __init__(self, rules: RuleSet, *, file: WatchedFile | None = None) -> None:
        self._rules = rules
        self._file = file

    @classmethod
    def parse(cls, text: str, source: str = "access rules") -> AccessRules:
        """Raises SettingsError that names ``source``, the line and what is wrong with it."""
        check_text("access rules", text)
        return cls(RuleSet.parse(text, source))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AccessRules:
        """Raises SettingsError that names the file, the line and what is wrong with it."""
        file = WatchedFile(path)
        return cls(RuleSet.parse(file.read(), str(file.path)), file=file)

    def refresh(self) -> bool:
        """Read the file again if it has changed, and say whether it had. Raises SettingsError as :meth:`load` does;
        then everything stays as it was.
        """
        if self._file is None or not self._file.has_changed():
            return False
        self._rules = RuleSet.parse(self._file.read(), str(self._file.path))
        return True

    @property
    def rules(self) -> RuleSet:
        """Those of now."""
        return self._rules

    def permissions(self, user: str | None, client_id: str) -> ClientPermissions:
        """What a client may do."""
        return self._rules.permissions(user, client_id)


# -- revocation --------------------------------------------------------------------------------------------------------
#
# Which certificates are good no longer, when lists of revoked ones and files of authorities change (RFC 5280).
#
# TLS itself refuses whoever shows one of them. This is for the connections that stand. What is in the files is well-
# formed, since TLS has loaded them before.
#
# A certificate is told by its issuer and its number, because each authority counts for itself. Names are compared as
# TLS does it: by kinds and texts, without regard to case, spaces and the encoding (7.1).


#: Of its parts, from the root on, each the kinds and texts in it.
Name: TypeAlias = "tuple[frozenset[tuple[bytes, str]], ...]"
#: The issuer, and the number that it has given.
CertificateId: TypeAlias = "tuple[Name, int]"

_PEM: Final = rb"-----BEGIN %b-----([A-Za-z0-9+/=\s]+)-----END %b-----"
_LIST: Final = re.compile(_PEM % (b"X509 CRL", b"X509 CRL"))
_KIND: Final = rb"(?:TRUSTED |X509 )?CERTIFICATE"
_CERTIFICATE: Final = re.compile(_PEM % (_KIND, _KIND))
_INTEGER: Final = 0x02
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_TIMES: Final = (0x17, 0x18)  # UTCTime and GeneralizedTime
#: Texts that are not in ASCII or UTF-8: UniversalString and BMPString.
_ENCODINGS: Final = {0x1C: "utf-32-be", 0x1E: "utf-16-be"}


@attrs.frozen
class Trust:
    """Whom the files of a server let in: certificates of these authorities (DER) that are not revoked."""

    revoked: frozenset[CertificateId] = frozenset()
    authorities: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, authorities: bytes, lists: bytes) -> Trust:
        """From files in PEM. Raises ValueError, IndexError and RuntimeError for what TLS would not have loaded."""
        revoked = (each for text in _LIST.findall(lists) for each in _revoked(b64decode(text)))
        return cls(frozenset(revoked), frozenset(b64decode(text) for text in _CERTIFICATE.findall(authorities)))

    def withdrawn_since(self, before: Trust) -> Callable[[CertificateId], str | None] | None:
        """Why a certificate that was good before is not now, None if it is; None in place of that if all still are.

        An authority that is gone has issued others, of which nobody here knows whom they have certified. So of
        certificates that no root in the file has issued, none is good then: their clients come in again if they may.
        """
        more, gone = self.revoked - before.revoked, before.authorities - self.authorities
        if not more and not gone:
            return None
        names = [_names(der) for der in self.authorities]
        roots = {subject for issuer, subject in names if issuer == subject} - {_names(der)[1] for der in gone}

        def problem(certificate: CertificateId) -> str | None:
            if certificate in more:
                return "the certificate is revoked"
            if gone and certificate[0] not in roots:
                return "the authority of the certificate is not trusted any more"
            return None

        return problem


def certificate_id(der: bytes) -> CertificateId:
    """Of a certificate (4.1)."""
    (_, serial), _, (_, issuer), *_ = _signed(der, _VERSION)
    return _name(issuer), int.from_bytes(serial, "big")


def ends_of(pem: bytes) -> list[float]:
    """Until when each certificate (4.1.2.5) and list of revoked ones (5.1.2.5) in PEM is good, in seconds since 1970. A
    list that does not say so is left out. Raises ValueError and IndexError for what TLS would not have loaded.
    """
    ends = []
    for text in _CERTIFICATE.findall(pem):
        _, _, _, (_, validity), *_ = _signed(b64decode(text), _VERSION)
        _, (tag, end) = _elements(validity)
        ends.append(_time(tag, end))
    for text in _LIST.findall(pem):
        _, _, _, (tag, end), *_ = [*_signed(b64decode(text), _INTEGER), (0, b"")]
        if tag in _TIMES:
            ends.append(_time(tag, end))
    return ends


def _time(tag: int, text: bytes) -> float:
    """``YYMMDDHHMMSSZ`` of the years 1950 to 2049, or with four digits of the year."""
    digits = text.decode("ascii")
    if tag == _TIMES[0]:
        digits = f"{'19' if digits >= '50' else '20'}{digits}"
    return datetime.strptime(f"{digits}+0000", "%Y%m%d%H%M%SZ%z").timestamp()


def _names(der: bytes) -> tuple[Name, Name]:
    """Who has issued a certificate, and to whom."""
    _, _, (_, issuer), _, (_, subject), *_ = _signed(der, _VERSION)
    return _name(issuer), _name(subject)


def _revoked(der: bytes) -> Iterator[CertificateId]:
    """``TBSCertList`` (5.1) has signature, issuer, one or two times, and then the revoked ones, if there are any."""
    _, (_, issuer), *rest = _signed(der, _INTEGER)
    name, before = _name(issuer), 0
    for tag, content in rest:
        if tag == _SEQUENCE and before in _TIMES:
            for _, entry in _elements(content):
                _, serial = next(_elements(entry))
                yield name, int.from_bytes(serial, "big")
        before = tag


def _signed(der: bytes, version: int) -> list[tuple[int, bytes]]:
    """The parts of what is signed, without the version, if it has one."""
    _, whole = next(_elements(der))
    _, signed = next(_elements(whole))
    parts = [*_elements(signed)]
    return parts[1:] if parts[0][0] == version else parts


def _name(der: bytes) -> Name:
    return tuple(frozenset(_attribute(attribute) for _, attribute in _elements(part)) for _, part in _elements(der))


def _attribute(der: bytes) -> tuple[bytes, str]:
    (_, kind), (tag, text) = _elements(der)
    decoded = text.decode(_ENCODINGS.get(tag, "utf-8"), "surrogateescape")
    return kind, " ".join(decoded.casefold().split())


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents (X.690, 8.1), one behind the other."""
    pos = 0
    while pos < len(der):
        tag, size, start = der[pos], der[pos + 1], pos + 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(der[pos + 2 : start], "big")
        pos = start + size
        yield tag, der[start:pos]
