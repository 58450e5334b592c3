"""Which certificates a list of revoked ones names: their serial numbers (RFC 5280, 5.1).

TLS itself refuses whoever shows one of them. This is for the connections that stand when the list changes. The list was
loaded by TLS before, so it is well-formed.
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["revoked_serials"]

_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----([A-Za-z0-9+/=\s]+)-----END X509 CRL-----")
_SEQUENCE: Final = 0x30
_TIMES: Final = (0x17, 0x18)  # UTCTime and GeneralizedTime


def revoked_serials(pem: bytes) -> frozenset[int]:
    """Of all lists in the text."""
    return frozenset(serial for text in _LIST.findall(pem) for serial in _serials(b64decode(text)))


def _serials(der: bytes) -> Iterator[int]:
    """``TBSCertList`` has version, signature, issuer, one or two times, and then the revoked ones, if there are any."""
    ((_, whole),) = _elements(der)
    _, signed = next(_elements(whole))
    before = 0
    for tag, content in _elements(signed):
        if tag == _SEQUENCE and before in _TIMES:
            for _, entry in _elements(content):
                _, serial = next(_elements(entry))
                yield int.from_bytes(serial, "big")
        before = tag


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
