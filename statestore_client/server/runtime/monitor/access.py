"""The monitor is for the same people as MQTT, by the same passwords and rules.

=====================================  ============================================================================
the server asks nobody who he is       everybody on this machine may look. The port is on this machine only, and a
                                       request has to name it so: no web page that has another name gets in
it has passwords                       HTTP Basic, on this machine too. Anonymous clients do not count
it has access rules                    the user needs their ``admin`` line; for values of keys also a ``read`` line
it asks for certificates or tokens     refused at the start: a browser cannot show what proves the identity
only
=====================================  ============================================================================
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import attrs

from raft_client._common.hosts import host_of, is_local
from raft_client._common.http_server import HttpRequest, HttpResponse
from statestore_client.clocks import monotonic
from statestore_client.errors import SettingsError
from statestore_client.server.access import ClientPermissions
from statestore_client.server.broker import Admitted, Credentials
from statestore_client.server.broker.quotas import network_of
from statestore_client.server.runtime.fairness import Throttle
from statestore_client.wire.commands import Get

if TYPE_CHECKING:
    from statestore_client.server.runtime.security.security import Security

_CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="statestore monitor", charset="UTF-8"'),)


def check_monitor(host: str, security: Security, *, asks_for_certificates: bool, has_actions: bool) -> None:
    """Raises SettingsError if nobody could look at the monitor, or too many could look or act."""
    if security.has_passwords:
        if has_actions and not security.has_rules:
            raise SettingsError(
                "actions of the monitor need access rules (--acl-file) that name the users that may act, by an 'admin' "
                "line"
            )
        return
    if security.requires_identity or asks_for_certificates:
        raise SettingsError(
            "the monitor needs passwords (--password-file): this server asks its clients who they are, and a browser "
            "can show neither their certificates nor their tokens"
        )
    if security.has_rules:
        raise SettingsError(
            "the monitor needs passwords (--password-file), as the access rules permit it to users with an 'admin' line"
        )
    if not is_local(host):
        raise SettingsError(
            f"everybody who can reach {host} would see all keys in the monitor: give passwords (--password-file), or "
            "leave it on this machine"
        )


@attrs.frozen
class Viewer:
    """Somebody who may look. ``permissions`` is None where no rules limit anybody."""

    user: str | None = None
    permissions: ClientPermissions | None = None

    def may_read(self, key: bytes) -> bool:
        """Whether it may see the value of a key."""
        return self.permissions is None or self.permissions.may_run(Get(key))


class MonitorAccess:
    """Lets viewers in. Belongs to the event loop."""

    def __init__(self, security: Security, host: str, failed_attempts: int) -> None:
        self._security = security
        self._host = host
        self._throttle = Throttle(failed_attempts)
        self._verifying = asyncio.Semaphore(1)  # a hash takes 16 MiB

    async def admit(self, request: HttpRequest) -> Viewer | HttpResponse:
        """The viewer, or what to answer somebody who is none."""
        if not self._security.has_passwords:
            return Viewer() if self._is_named_right(request) else _refuse(HTTPStatus.MISDIRECTED_REQUEST, _NAME)
        address = network_of(request.peer) or ""
        credentials = _basic(request.headers.get("authorization", ""))
        if credentials is None:
            return _refuse(HTTPStatus.UNAUTHORIZED, "a user of the server and a password, please", _CHALLENGE)
        verdict = self._security.authenticate(credentials)  # at once, for a password that was right before
        if verdict is None:
            if self._throttle.is_used_up(address, monotonic()):
                return _refuse(HTTPStatus.TOO_MANY_REQUESTS, "too many failed attempts from this address")
            async with self._verifying:
                verdict = await asyncio.to_thread(self._security.verify, credentials)
        if not isinstance(verdict, Admitted):
            self._throttle.used(address, monotonic())
            return _refuse(HTTPStatus.UNAUTHORIZED, "wrong user name or password", _CHALLENGE)
        permissions = self._security.permissions(credentials.username, "")
        if permissions is not None and not permissions.may_administer:
            user = credentials.username
            return _refuse(
                HTTPStatus.FORBIDDEN, f"the server's access rules have no 'admin' line for the user {user!r}"
            )
        return Viewer(credentials.username, permissions)

    def _is_named_right(self, request: HttpRequest) -> bool:
        """A page of another site could give its own name our address. It cannot take ours."""
        name = host_of(request.headers.get("host", ""))
        return name is not None and (is_local(name) or name == self._host)


_NAME: Final = "this page is at localhost only"


def _basic(header: str) -> Credentials | None:
    """RFC 7617."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = b64decode(text.strip(), validate=True).partition(b":")
        return Credentials("", username=user.decode(), password=password) if colon else None
    except (binascii.Error, ValueError):
        return None


def _refuse(status: HTTPStatus, text: str, headers: tuple[tuple[str, str], ...] = ()) -> HttpResponse:
    return HttpResponse(f"{text}\n".encode(), status, headers=headers)
