"""Names and addresses of machines: who reaches an address to listen at, and which host a Host header names.

Servers that let everybody in, and pages that are for this machine only, decide by these.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final

#: RFC 9110, section 7.2, of registered names those that are in use.
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9A-Za-z._-]{1,253}))(?::[0-9]{1,5})?")


def host_of(authority: str) -> str | None:
    """Take the name or address out of ``host``, ``host:port`` or ``[address]:port``; None if it is none of these."""
    match = _HOST.fullmatch(authority)
    return None if match is None else match[1] or match[2]


def is_local(host: str) -> bool:
    """Say whether only this machine reaches ``host``: a loopback address, in brackets or not, or ``localhost``.

    Other names are taken for those of other machines, since looking one up says what it is today only.
    """
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"
