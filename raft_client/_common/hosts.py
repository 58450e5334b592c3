"""Who reaches an address to listen at: this machine only, or others. Servers that let everybody in ask."""

from __future__ import annotations

from ipaddress import ip_address

__all__ = ["is_local"]


def is_local(host: str) -> bool:
    """Whether only this machine reaches it. Of a name nobody knows, but of ``localhost``. An IPv6 address may be in
    brackets, as in a URL.
    """
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"
