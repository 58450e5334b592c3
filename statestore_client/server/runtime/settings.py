"""What a server is to be, as values that are checked once: where they are given, and not where they are used."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client._common.hosts import is_local
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.server.broker import BrokerLimits
from statestore_client.server.checks import (
    check_flag,
    check_kind,
    check_number,
    check_seconds,
    check_text,
    check_tuple,
    flag,
    function,
    kind,
    number,
    path,
    required,
)
from statestore_client.server.kvstore.area_store import DEFAULT_LIMITS
from statestore_client.server.kvstore.own_keys import DEFAULT_KEY_TTL_MS, LEAST_KEY_TTL_MS
from statestore_client.server.kvstore.peers import FIRST_WAIT_S, LONGEST_WAIT_S
from statestore_client.server.runtime.security.files import AccessRules
from statestore_client.server.runtime.transport.tls import ServerTls
from statestore_client.server.store import Persistence, StoreLimits
from statestore_client.wire.kvstore.value import MAX_ORIGINATOR_BYTES, MAX_TTL_MS, RESERVED
from statestore_client.wire.protocol import Dialect

if TYPE_CHECKING:
    from statestore_client.server.runtime.replication.settings import ReplicaSettings
    from statestore_client.server.runtime.security.security import TokenVerifier
    from statestore_client.server.service.service import Authorizer

DEFAULT_AREA: Final = "default"
#: Addresses that a site dials; each of them is tried for ever.
MAX_DIALLED: Final = 256
#: A peer that fails is not asked more often, in seconds.
_LEAST_BACKOFF_S: Final = 0.1
#: So long a site that dials others waits for the first of them, until it counts as synced without, in seconds.
DEFAULT_SYNC_TIMEOUT_S: Final = 10.0
#: What a hello carries, and a summary has numbers of, is far from filling a message.
_MAX_AREAS: Final = 64


# -- endpoints ---------------------------------------------------------------------------------------------------------
#
# Where a server is to listen: ports, a path, and the origins of web pages, as values that were checked.


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
        raise InvalidArgumentError(f"{field.name} is empty; 0.0.0.0 and :: are all addresses", argument=field.name)


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
            raise SettingsError("tls_port and wss_port need a certificate", argument=("tls_port", "wss_port"))


# -- sites -------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SiteEndpoints:
    """A site as its operator knows it. Raises InvalidArgumentError.

    ``listen`` is where other sites and clients of the KvStore come in, ``peers`` are the sites that this one dials:
    ``tcp://host:port`` or ``ipc://path``. A connection makes peers of both sides, whoever dialled. Sites exchange the
    ``areas`` that both of them have. The first area carries what is exported and imported.

    ``curve_keys`` is a directory of keys: ``NAME.key_secret`` of this site, ``NAME.key`` of others, and
    ``clients/*.key``. Everything is encrypted then, nobody comes in whose key is not there, and ``NAME=`` stands before
    the address of each peer.
    """

    name: str
    listen: str | None = None
    peers: tuple[str, ...] = ()
    areas: tuple[str, ...] = (DEFAULT_AREA,)
    #: Keys of the state store that begin with one of these cross to other sites, and are read-only there.
    exports: tuple[str, ...] = ()
    #: Whether what other sites export is in the state store, as ``sites/NAME/KEY``.
    imports: bool = False
    curve_keys: Path | None = None
    #: The time to live of keys that this site keeps alive, if nothing else is said: so long they last elsewhere after
    #: the site has died or was cut off.
    key_ttl_s: float = DEFAULT_KEY_TTL_MS / 1000
    #: Updates that leave each area in a second, each of any number of keys. More of them wait, and are merged.
    flood_rate: int | None = None
    #: So many of them may leave at once after a quiet time. None: as many as in a second.
    flood_burst: int | None = None
    #: What each area holds at most: keys, and bytes of keys, originators and values. What has no room is refused.
    max_keys: int = DEFAULT_LIMITS.max_keys
    max_bytes: int = DEFAULT_LIMITS.max_bytes
    #: So long the site counts as not synced while it has not synced with another one. None: 10 s if it dials others,
    #: and 0 if it waits for others to dial it, as it may be alone.
    sync_timeout_s: float | None = None
    #: After a sync has failed its peer is left alone for so long, twice as long after each further failure, and at most
    #: so long; up to a quarter less, by chance.
    sync_backoff_s: float = FIRST_WAIT_S
    sync_max_backoff_s: float = LONGEST_WAIT_S

    def __attrs_post_init__(self) -> None:
        check_tuple("peers", self.peers)
        check_tuple("areas", self.areas)
        check_seconds("key_ttl_s", self.key_ttl_s, LEAST_KEY_TTL_MS / 1000, MAX_TTL_MS / 1000)
        if self.flood_rate is not None:
            check_number("flood_rate", self.flood_rate, 1)
        check_number("max_keys", self.max_keys, 1)
        check_number("max_bytes", self.max_bytes, 1)
        if self.flood_burst is not None:
            check_number("flood_burst", self.flood_burst, 1)
            if self.flood_rate is None:
                raise InvalidArgumentError(
                    "flood_burst is for what a flood_rate lets through; there is none", argument="flood_burst"
                )
        check_seconds("sync_backoff_s", self.sync_backoff_s, _LEAST_BACKOFF_S)
        check_seconds("sync_max_backoff_s", self.sync_max_backoff_s, self.sync_backoff_s)
        if self.sync_timeout_s is not None:
            check_seconds("sync_timeout_s", self.sync_timeout_s)
        if self.curve_keys is not None:
            check_kind("curve_keys", self.curve_keys, Path)
        for url in (self.listen or "", *self.peers):
            check_text("an address of a site", url)
        for what, names in (("a site", (self.name,)), ("an area", self.areas)):
            for name in names:
                check_text(f"the name of {what}", name)
                if not 0 < len(name.encode(errors="replace")) <= MAX_ORIGINATOR_BYTES or not name.isprintable():
                    raise InvalidArgumentError(
                        f"the name of {what} has 1 to {MAX_ORIGINATOR_BYTES} bytes, and no control characters, "
                        f"not {name!r}"
                    )
        if not 0 < len(self.areas) <= _MAX_AREAS or len(set(self.areas)) < len(self.areas):
            raise InvalidArgumentError(f"a site has at least one area, at most {_MAX_AREAS}, and each of them once")
        if len(self.peers) > MAX_DIALLED:
            raise InvalidArgumentError(f"a site dials at most {MAX_DIALLED} addresses, not {len(self.peers)}")
        if self.listen is None and not self.peers:
            raise InvalidArgumentError(
                f"the site {self.name!r} neither listens nor dials other sites; it needs one of both"
            )
        self._check_bridge()

    def _check_bridge(self) -> None:
        check_tuple("exports", self.exports)
        check_flag("imports", self.imports)
        for prefix in self.exports:
            check_text("a prefix of exported keys", prefix)
            if not prefix or prefix.startswith(RESERVED) or prefix.encode(errors="replace").decode() != prefix:
                raise InvalidArgumentError(
                    f"a prefix of exported keys is text of at least one character, and does not begin with "
                    f"{RESERVED!r}, as what has come from a site does not leave for another one; not {prefix!r}"
                )
        if self.has_bridge and "/" in self.name:
            raise InvalidArgumentError(
                f"keys of this site are {RESERVED}NAME/KEY at other sites, so its name has no '/', not {self.name!r}"
            )

    @property
    def waits_s(self) -> float:
        """``sync_timeout_s``, or what stands for None."""
        if self.sync_timeout_s is None:
            return DEFAULT_SYNC_TIMEOUT_S if self.peers else 0.0
        return self.sync_timeout_s

    @property
    def has_bridge(self) -> bool:
        """Whether keys of the state store cross, in either direction."""
        return bool(self.exports) or self.imports


def _as_dialect(name: Dialect | str) -> Dialect:
    try:
        return Dialect(name)
    except ValueError:
        known = " or ".join(repr(dialect.value) for dialect in Dialect)
        raise InvalidArgumentError(f"dialect must be {known}, not {name!r}") from None


def _passwords(_settings: object, field: attrs.Attribute[Any], value: object) -> None:
    check_kind(field.name, value, str, os.PathLike, Mapping, wanted="a path or a dictionary")


def _rules(_settings: object, field: attrs.Attribute[Any], value: object) -> None:
    check_kind(field.name, value, str, os.PathLike, AccessRules, wanted="a path or AccessRules")


def replica_settings(_settings: object, field: attrs.Attribute[Any], value: object) -> None:
    """Of a field that has ReplicaSettings or None."""
    if value is not None:  # the client of the log takes a while to import, and most servers do without
        from statestore_client.server.runtime.replication.settings import ReplicaSettings

        check_kind(field.name, value, ReplicaSettings)


@attrs.frozen(kw_only=True)
class ServerSettings:
    """A server: of the command, of a program, and of tests. Raises InvalidArgumentError for what cannot be used.

    ``data`` is a directory for what is to survive; without, nothing does. With it, ``persist`` says which keys are
    among that. ``site`` makes it a site of the KvStore, too. With a ``log`` the data is there, and this server is
    active or stands by. ``passwords``, ``acl`` and ``tls`` may name files: they are read when the server is made. With
    ``monitor_actions`` the monitor does not only look.
    """

    endpoints: Endpoints = attrs.field(factory=Endpoints, validator=required(kind(Endpoints)))
    dialect: Dialect = attrs.field(default=Dialect.SERVICE, converter=_as_dialect)
    broker_limits: BrokerLimits | None = attrs.field(default=None, validator=kind(BrokerLimits))
    store_limits: StoreLimits | None = attrs.field(default=None, validator=kind(StoreLimits))
    authorize: Authorizer | None = attrs.field(default=None, validator=function)
    tls: ServerTls | ssl.SSLContext | None = attrs.field(default=None, validator=kind(ServerTls, ssl.SSLContext))
    passwords: str | os.PathLike[str] | Mapping[str, str] | None = attrs.field(
        default=None, validator=_passwords, repr=False
    )
    acl: str | os.PathLike[str] | AccessRules | None = attrs.field(default=None, validator=_rules)
    token_verifier: TokenVerifier | None = attrs.field(default=None, validator=function)
    allow_anonymous: bool = attrs.field(default=False, validator=flag)
    data: str | os.PathLike[str] | None = attrs.field(default=None, validator=path)
    persist: str | Collection[str] = "all"
    site: SiteEndpoints | None = attrs.field(default=None, validator=kind(SiteEndpoints))
    log: ReplicaSettings | None = attrs.field(default=None, validator=replica_settings)
    monitor_actions: bool = attrs.field(default=False, validator=flag)
    #: What ``persist`` says.
    persistence: Persistence = attrs.field(init=False)

    @persistence.default
    def _persistence(self) -> Persistence:
        return Persistence.of(self.persist)

    def __attrs_post_init__(self) -> None:
        if self.data is None and self.persist != "all":
            raise InvalidArgumentError(f"persist={self.persist!r} says what data keeps; give a directory as data, too")
        if self.log is not None and self.data is not None:
            raise InvalidArgumentError("with a log everything is in the log: give no data")
