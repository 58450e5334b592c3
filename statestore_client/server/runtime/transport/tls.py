"""TLS for the server: 1.2 or newer, client certificates if an authority for them is named, files that may change.

The handshake is our own business, not that of ``create_server``: so a connection in the middle of one counts as a
connection, and can be ended when the server stops.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.server.checks import path, required
from statestore_client.server.runtime.observability.logs import log_event
from statestore_client.server.runtime.security.files import (
    CertificateId,
    Trust,
    WatchedFile,
    certificate_id,
    ends_of,
)
from statestore_client.server.runtime.transport.peers import peer_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.errors import PacketError
    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.observability.logs import RefusalLog
    from statestore_client.server.runtime.transport.peers import Peer

# -- tls alerts --------------------------------------------------------------------------------------------------------
#
# TLS alerts that reach the peer.
#
# asyncio closes the socket of a failed handshake without sending what TLS has to say about it, so that a client with an
# expired certificate sees no more than the end of the connection, and tries again for ever. Here the alert is written
# to the socket before asyncio hears of the failure.


#: The transport whose handshake begins. asyncio makes the TLS object in a callback, which inherits the context.
handshake_of: ContextVar[asyncio.Transport] = ContextVar("handshake_of")


class _AlertingObject(ssl.SSLObject):
    """Says why its handshake failed."""

    outgoing: ssl.MemoryBIO
    transport: asyncio.Transport | None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.transport is not None and (alert := self.outgoing.read()):
                self.transport.write(alert)
            raise


class AlertingContext(ssl.SSLContext):
    """A context for servers whose handshakes run under :data:`handshake_of`. Elsewhere it is as any other."""

    sslobject_class: type[ssl.SSLObject] = _AlertingObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        if isinstance(made, _AlertingObject):
            made.outgoing, made.transport = outgoing, handshake_of.get(None)
        return made


def alerting(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same context, whose handshakes send alerts from now on. One that has its own way to make TLS objects, of
    another library, stays as it is.
    """
    if type(context) is ssl.SSLContext and context.sslobject_class is ssl.SSLObject:
        context.__class__ = AlertingContext
    return context


# -- tls ---------------------------------------------------------------------------------------------------------------


#: How long a peer may take to answer the end of TLS, in seconds.
_SHUTDOWN_S: Final = 1.0
#: When to warn of a file that will be good no longer, and how often.
_SOON_S: Final = 30 * 86_400.0
_WARN_EVERY_S: Final = 86_400.0


@attrs.frozen(kw_only=True)
class ServerTls:
    """Files in PEM. ``cert_file`` has the server's certificate and what is between it and the authority, and its key as
    well if there is no ``key_file``.

    With ``ca_file``, clients must show a certificate that one of these authorities issued. ``crl_file`` has the lists
    of certificates that they have revoked, one of each authority between a client and the root, and none that is out
    of date: without the right list nobody comes in. ``key_password_file`` is for an encrypted key. Raises
    InvalidArgumentError for what is not a path, and for a ``crl_file`` without a ``ca_file``.
    """

    cert_file: str = attrs.field(validator=required(path))
    key_file: str | None = attrs.field(default=None, validator=path)
    ca_file: str | None = attrs.field(default=None, validator=path)
    key_password_file: str | None = attrs.field(default=None, validator=path)
    crl_file: str | None = attrs.field(default=None, validator=path)

    def __attrs_post_init__(self) -> None:
        if self.crl_file is not None and self.ca_file is None:
            raise InvalidArgumentError("crl_file needs a ca_file")

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises SettingsError that names the one that cannot be used."""
        context = alerting(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert_file, self.key_file, self._key_password())
        except (OSError, ssl.SSLError) as error:
            key_file = self.key_file or self.cert_file
            why = _missing("certificate", self.cert_file) or _missing("private key", key_file) or error
            both = self.cert_file if self.key_file is None else f"{self.cert_file} with key {self.key_file}"
            raise SettingsError(f"certificate {both} cannot be loaded: {why}") from error
        if self.ca_file is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.ca_file)
            except (OSError, ssl.SSLError) as error:
                why = _missing("certificate", self.ca_file) or error
                raise SettingsError(f"authorities {self.ca_file} cannot be loaded: {why}") from error
        if self.crl_file is not None:
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN
            self._load_revoked(context, self.crl_file)
        return context

    def _load_revoked(self, context: ssl.SSLContext, file: str) -> None:
        try:
            context.load_verify_locations(file)
            why: object = _missing("X509 CRL", file)
        except (OSError, ssl.SSLError) as error:
            why = _missing("X509 CRL", file) or error
        if why:
            raise SettingsError(f"revoked certificates {file} cannot be loaded: {why}")

    def trust(self) -> Trust:
        """Whom the files let in. Raises SettingsError for files that cannot be read."""
        files = (self.ca_file, self.crl_file)
        try:
            authorities, lists = (b"" if file is None else Path(file).read_bytes() for file in files)
            return Trust.of(authorities, lists)
        except (OSError, ValueError, IndexError, RuntimeError) as error:  # TLS has read them a moment ago
            which = " or ".join(file for file in files if file is not None)
            raise SettingsError(f"authorities or revoked certificates cannot be read from {which}: {error}") from error

    def ends(self) -> dict[str, float]:
        """Until when the files are good, in seconds since 1970, by what is in them: the ``server``'s certificate with
        those between it and the authority, the first that ends; the ``authorities``, the last one, since old roots lie
        about in such files; the lists of ``revoked`` certificates, the first one, after which no client comes in.
        """
        files = {
            "server": (self.cert_file, min),
            "authorities": (self.ca_file, max),
            "revoked": (self.crl_file, min),
        }
        found: dict[str, float] = {}
        for what, (file, first_or_last) in files.items():
            try:
                ends = [] if file is None else ends_of(Path(file).read_bytes())
            except (OSError, ValueError, IndexError):  # TLS has read it a moment ago, and judges what it says
                continue
            if ends:
                found[what] = first_or_last(ends)
        return found

    def _key_password(self) -> str:
        """Empty without a file: OpenSSL would ask for one on the terminal."""
        if self.key_password_file is None:
            return ""
        try:
            return Path(self.key_password_file).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"key password {self.key_password_file} cannot be read: {error}") from error


def _missing(what: str, file: str) -> str | None:
    """What OpenSSL leaves to be guessed: *PEM lib*. None if the file has one (RFC 7468), or cannot be read."""
    try:
        text = Path(file).read_bytes()
    except OSError:
        return None
    if re.search(rb"-----BEGIN [A-Z0-9 ]*%b-----" % what.upper().encode(), text):
        return None
    return f"there is no {what} in {file}"


class TlsFiles:
    """The context for new connections, made anew when a file has changed."""

    def __init__(self, tls: ServerTls | ssl.SSLContext) -> None:
        """Raises SettingsError as :meth:`ServerTls.context`. A context of the user's own is not made anew."""
        self._tls = tls
        self._files: list[WatchedFile] = []
        self._trust = Trust()
        #: Until when the files are good, see :meth:`ServerTls.ends`; empty for a context of the user's own.
        self.ends: dict[str, float] = {}
        self._warns_at = 0.0
        if isinstance(tls, ssl.SSLContext):
            self.context: ssl.SSLContext = alerting(tls)
            return
        paths = (tls.cert_file, tls.key_file, tls.ca_file, tls.key_password_file, tls.crl_file)
        self._files = [WatchedFile(path) for path in paths if path is not None]
        for file in self._files:
            file.has_changed(remember=True)
        self.context = tls.context()
        self._trust = tls.trust()
        self.ends = tls.ends()

    @property
    def requires_identity(self) -> bool:
        """Whether clients have to show a certificate, or may."""
        return self.context.verify_mode is not ssl.CERT_NONE

    def refresh(self) -> Callable[[CertificateId], str | None] | None:
        """New files count from now, for new connections. Files with mistakes are logged, and the old ones go on.

        Returns which connections are to end, by their certificates; see :meth:`.Trust.withdrawn_since`.
        """
        changed = [file for file in self._files if file.has_changed(remember=True)]
        if isinstance(self._tls, ssl.SSLContext) or not changed:
            return None
        try:
            for file in changed:
                file.check_mount()
            context, trust = self._tls.context(), self._tls.trust()
        except SettingsError as error:
            log_event(logging.ERROR, "certificates not changed", reason=str(error))
            return None
        before, self.context, self._trust = self._trust, context, trust
        self.ends, self._warns_at = self._tls.ends(), 0.0
        log_event(logging.INFO, "certificates changed")
        return trust.withdrawn_since(before)

    def warn_of_ends(self, now_s: float) -> None:
        """Log which files are good no longer, or will be in 30 days or less: when they are new, and once a day.
        ``now_s`` is in seconds since 1970.
        """
        if now_s < self._warns_at:
            return
        self._warns_at = now_s + _WARN_EVERY_S
        for what, end_s in self.ends.items():
            not_after = datetime.fromtimestamp(end_s, UTC).isoformat()
            if end_s <= now_s:
                log_event(logging.WARNING, "certificates have expired", of=what, not_after=not_after)
            elif end_s - now_s < _SOON_S:
                days_left = int((end_s - now_s) // 86_400)
                log_event(
                    logging.WARNING, "certificates expire soon", of=what, not_after=not_after, days_left=days_left
                )


class TlsAcceptor:
    """Does the handshake with new connections, and hands them on."""

    def __init__(self, files: TlsFiles, driver: BrokerDriver, connect: Callable[[], asyncio.Protocol]) -> None:
        self._files = files
        self._driver = driver
        self._connect = connect
        self._handshakes: dict[asyncio.Task[None], asyncio.Transport] = {}

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a new socket."""
        return _HandshakeProtocol(self._begin, self._driver.refusals)

    def close(self) -> None:
        """Nobody who is still shaking hands gets in."""
        for task, transport in self._handshakes.items():
            task.cancel()
            transport.abort()

    def _begin(self, protocol: _HandshakeProtocol, transport: asyncio.Transport) -> None:
        peers = self._driver.peers
        peer = peers.accepted(transport, protocol, self._driver.now)
        if self._driver.is_closing:
            transport.abort()
        else:
            peers.make_room(peer)
        if transport.is_closing():
            peers.gone(peer)
            return
        transport.pause_reading()  # what comes belongs to the handshake
        task = asyncio.get_running_loop().create_task(self._handshake(protocol, transport, peer))
        self._handshakes[task] = transport
        task.add_done_callback(self._handshakes.__delitem__)

    async def _handshake(self, protocol: _HandshakeProtocol, transport: asyncio.Transport, peer: Peer) -> None:
        try:
            context = self._files.context
            secured = await self._start_tls(protocol, transport, context)
            if secured is not None and context is not self._files.context and certificate_of(secured) is not None:
                reason = "certificates or authorities have changed during the handshake"  # he may try again
                fields: dict[str, Any] = {"code": "tls", "reason": reason, "by": "server"}
                self._driver.refusals.line("refused", peer.name, **fields)
                secured.abort()
            elif secured is not None and protocol.hand_over(self._connect(), secured):
                return
        finally:
            if peer.link is protocol:
                self._driver.peers.gone(peer)

    async def _start_tls(
        self, protocol: _HandshakeProtocol, transport: asyncio.Transport, context: ssl.SSLContext
    ) -> asyncio.Transport | None:
        """The transport behind the handshake; None if that failed."""
        handshake_of.set(transport)  # in this task only
        try:
            return await asyncio.get_running_loop().start_tls(
                transport,
                protocol,
                context,
                server_side=True,
                ssl_handshake_timeout=self._driver.broker.limits.connect_timeout_s,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError as error:  # of TLS and of the network, and the time that is over
            self._failed(peer_name(transport), error)
            transport.abort()
            # It is in a future of a frame of its traceback, which has the buffers of the handshake, too: 300 kB that
            # would wait for the garbage collector.
            error.__traceback__ = None
            return None

    def _failed(self, peer: str, error: OSError) -> None:
        """A refusal, also if the peer refuses: it may not trust our certificate, and the operator has to hear of that.

        A peer that breaks off, or only tests whether the port is open, is not refused.
        """
        is_refusal = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
        is_ours = is_refusal and "_ALERT_" not in (getattr(error, "reason", None) or "")
        fields: dict[str, Any] = {"code": "tls", "reason": str(error), "by": "server" if is_ours else "peer"}
        if is_refusal:
            self._driver.refusals.line("refused", peer, **fields)
        else:
            log_event(logging.INFO, "disconnected", peer=peer, **fields)


def certified_name(transport: asyncio.BaseTransport) -> str | None:
    """The common name in the client's certificate, empty if it has none. Only a verified one is there at all."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return names[-1] if names else ""


def certificate_of(transport: asyncio.BaseTransport) -> CertificateId | None:
    """Which one the peer has shown; None if it has shown none."""
    secured = transport.get_extra_info("ssl_object")
    der = None if secured is None else secured.getpeercert(True)
    return None if der is None else certificate_id(der)


class _HandshakeProtocol(asyncio.Protocol):
    """Stands in until the handshake is over, and keeps what comes right behind it."""

    def __init__(self, begin: Callable[[_HandshakeProtocol, asyncio.Transport], None], refusals: RefusalLog) -> None:
        self._refusals = refusals
        self._begin: Callable[[_HandshakeProtocol, asyncio.Transport], None] | None = begin
        self._early: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            self._transport = cast("asyncio.Transport", transport)
            begin(self, self._transport)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_lost = True

    def drop(self, error: PacketError) -> None:
        """It was chosen to go, before its handshake was over."""
        if self._transport is not None:
            fields: dict[str, Any] = {"code": f"{error.reason_code:#04x}", "reason": error.message, "by": "server"}
            self._refusals.line("refused", peer_name(self._transport), **fields)
            self._transport.abort()

    def hand_over(self, connection: asyncio.Protocol, transport: asyncio.Transport) -> bool:
        """From here on the connection hears everything itself. False if there is nobody left."""
        if self._is_lost:
            return False
        transport.set_protocol(connection)
        connection.connection_made(transport)
        for data in self._early:
            connection.data_received(data)
        return True
