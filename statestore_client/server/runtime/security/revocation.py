"""Which certificates are good no longer, when lists of revoked ones and files of authorities change (RFC 5280).

TLS itself refuses whoever shows one of them. This is for the connections that stand. What is in the files is
well-formed, since TLS has loaded them before.

A certificate is told by its issuer and its number, because each authority counts for itself. Names are compared as TLS
does it: by kinds and texts, without regard to case, spaces and the encoding (7.1).
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CertificateId", "Name", "Trust", "certificate_id"]

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
