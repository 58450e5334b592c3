"""Where a server is to listen: ports, a path, and the origins of web pages, as values that were checked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import attrs

from raft_client._common.hosts import is_local
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.server.checks import check_number, check_text, number, path

__all__ = ["Endpoints", "origin_problem"]

#: RFC 6454, section 6.1. Anything else is never what a browser sends.
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")


def origin_problem(origin: str) -> str | None:
    """Why no page has this origin; None if one may have."""
    if origin == "*" or (isinstance(origin, str) and _ORIGIN.fullmatch(origin)):
        return None
    return f"{origin!r} is neither like https://host or https://host:port, nor *"


def _is_host(_endpoints: object, field: attrs.Attribute[str], host: object) -> None:
    check_text(field.name, host)
    if not host:
        raise InvalidArgumentError(f"{field.name} is empty; 0.0.0.0 and :: are all addresses")


def _is_port(_endpoints: object, field: attrs.Attribute[int | None], port: object) -> None:
    if port is not None:
        check_number(field.name, port, 0, 65_535)


def _as_origins(origins: Iterable[str]) -> tuple[str, ...]:
    if isinstance(origins, str) or not isinstance(origins, Iterable):
        raise InvalidArgumentError(f'ws_origins must be a list, like ["https://host"], not {origins!r}')
    found = tuple(origins)
    problem = next(filter(None, map(origin_problem, found)), None)
    if problem is not None:
        raise InvalidArgumentError(f"ws_origins: {problem}")
    return found


@attrs.frozen(kw_only=True)
class Endpoints:
    """Ports of one host, and a path; None for none, port 0 for a free one.

    ``port`` is with TLS if there are certificates and no ``tls_port``. ``ws_origins`` are the web pages that may come
    in over WebSocket, beside those of the same host. ``metrics_port`` is for Prometheus, on a host of its own: who may
    send messages need not see the figures; ``monitor_port`` likewise, for people. Raises InvalidArgumentError for what
    is none of these.
    """

    host: str = attrs.field(default="127.0.0.1", validator=_is_host)
    port: int = attrs.field(default=0, validator=number(0, 65_535))
    tls_port: int | None = attrs.field(default=None, validator=_is_port)
    ws_port: int | None = attrs.field(default=None, validator=_is_port)
    wss_port: int | None = attrs.field(default=None, validator=_is_port)
    unix_socket: str | None = attrs.field(default=None, validator=path)
    ws_origins: tuple[str, ...] = attrs.field(default=(), converter=_as_origins)
    metrics_host: str = attrs.field(default="127.0.0.1", validator=_is_host)
    metrics_port: int | None = attrs.field(default=None, validator=_is_port)
    monitor_host: str = attrs.field(default="127.0.0.1", validator=_is_host)
    monitor_port: int | None = attrs.field(default=None, validator=_is_port)

    def __attrs_post_init__(self) -> None:
        if self.ws_origins and self.ws_port is None and self.wss_port is None:
            raise InvalidArgumentError("ws_origins need a ws_port or a wss_port")

    @property
    def is_local(self) -> bool:
        """Whether clients on other machines find no endpoint."""
        return is_local(self.host)

    def check(self, *, has_tls: bool) -> None:
        """Raises SettingsError for ports that need certificates when there are none."""
        if not has_tls and (self.tls_port is not None or self.wss_port is not None):
            raise SettingsError("tls_port and wss_port need a certificate")
