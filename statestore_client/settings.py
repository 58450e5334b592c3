"""How to reach a broker: one frozen, validated, picklable value for every shell, Spark and the command line."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, Unpack

import attrs

from statestore_client.errors import SettingsError
from statestore_client.setting_sources import (
    SCHEMES,
    read_address,
    read_connection_string,
    read_environment,
    read_mounts,
    read_url,
    write_address,
)

#: In hexadecimal it is part of topics of at most 65,535 bytes (MQTT 5.0, 1.5.4), beside the hexadecimal form of a key.
_MAX_CLIENT_ID: Final = 16_384
_MAX_TOPIC: Final = 65_535
#: It becomes a label of metrics: nothing that is longer can be a name.
_MAX_CATEGORY: Final = 256
#: Of ``connect_timeout``.
_SHORTEST_S: Final = 0.001
_TRUE: Final = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE: Final = frozenset({"0", "f", "false", "n", "no", "off"})


def _non_empty(_instance: ConnectionSettings, _attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{_attribute.name} must be a non-empty text, not {value!r}", argument=_attribute.name)


def _text_or_none(_instance: ConnectionSettings, attribute: attrs.Attribute[str | None], value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise SettingsError(
            f"{attribute.name} must be a text or None, not {type(value).__name__}", argument=attribute.name
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SettingsError(
            f"{attribute.name} has a lone surrogate in it, which is not a character", argument=attribute.name
        ) from None
    if "\0" in value:
        raise SettingsError(f"{attribute.name} must not have a NUL in it", argument=attribute.name)


def _path(_instance: ConnectionSettings, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str) or not value.startswith("/") or not value.isprintable():
        raise SettingsError(
            f"{attribute.name} must be a text that begins with '/', not {value!r}", argument=attribute.name
        )


def _client_id(_instance: ConnectionSettings, _attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value or any(c in value for c in "+#"):
        # The client id becomes part of topics, where '+' and '#' would be wildcards.
        raise SettingsError(
            f"client_id must be a non-empty text without '+' and '#', not {value!r}", argument="client_id"
        )
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in value):
        # Brokers may close the connection without a word (MQTT 5.0, 1.5.4).
        raise SettingsError(f"client_id must be a text without control characters, not {value!r}", argument="client_id")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise SettingsError(f"client_id is not valid text: {error}", argument="client_id") from None
    if size > _MAX_CLIENT_ID:
        raise SettingsError(f"client_id has {size} bytes; at most {_MAX_CLIENT_ID} are of use", argument="client_id")


def _port(_instance: ConnectionSettings, _attribute: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise SettingsError(f"port must be a number from 1 to 65535, not {value!r}", argument="port")


def _texts(value: Any) -> Any:
    """One text with commas as several."""
    if isinstance(value, str):
        return tuple(filter(None, map(str.strip, value.split(","))))
    return tuple(value) if isinstance(value, Sequence) else value


def _addresses(_instance: ConnectionSettings, _attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
        raise SettingsError(f"alternates must be texts 'host' or 'host:port', not {value!r}")
    for text in value:
        read_address(text, 1)


def _seconds(low: float, high: float) -> Any:
    def check(_instance: ConnectionSettings, _attribute: attrs.Attribute[float], value: float) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise SettingsError(
                f"{_attribute.name} must be seconds from {low:g} to {high:.10g}, not {value!r}",
                argument=_attribute.name,
            )

    return check


def _window(_instance: ConnectionSettings, _attribute: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65_535:
        # 65,535 packet identifiers exist (MQTT 5.0, 2.2.1).
        raise SettingsError(f"max_in_flight must be a number from 1 to 65535, not {value!r}", argument="max_in_flight")


def _category(_instance: ConnectionSettings, _attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.encode()) <= _MAX_CATEGORY:
        raise SettingsError(f"metric_category must be a text of 1 to {_MAX_CATEGORY} bytes or None, not {value!r}")


def _topic(_instance: ConnectionSettings, _attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value or not value.isprintable() or any(c in value for c in "+#"):
        raise SettingsError(
            f"response_topic must be a topic without '+' and '#', or None, not {value!r}", argument="response_topic"
        )
    if (size := len(value.replace("{client_id}", "." * _MAX_CLIENT_ID).encode())) > _MAX_TOPIC:
        raise SettingsError(
            f"response_topic may have {size} bytes; a topic has at most {_MAX_TOPIC}", argument="response_topic"
        )


class ClientOptions(TypedDict, total=False):
    """The settings that a client takes by name, for editors and type checkers; see :class:`ConnectionSettings`."""

    host: str
    port: int
    alternates: tuple[str, ...]
    tls: bool
    websocket: bool
    websocket_path: str
    username: str | None
    password: str | None
    password_file: str | None
    tls_ca_file: str | None
    tls_ca_dir: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_key_password_file: str | None
    sat_file: str | None
    keep_alive: float
    session_expiry: float
    clean_start: bool
    connect_timeout: float
    retry_first_connect: bool
    silence_timeout: float
    watch_lifetime: float
    reconnect_delay: float
    max_reconnect_delay: float
    request_timeout: float
    max_in_flight: int
    persist_session: bool
    tracing: bool
    metric_category: str | None
    response_topic: str | None
    driver: Literal["native", "paho"]


class ConnectionOptions(ClientOptions, total=False):
    """All settings by name."""

    client_id: str | None


class SharedOptions(TypedDict, total=False):
    """The settings that a client over a shared connection takes; the others are the application's."""

    connect_timeout: float
    max_in_flight: int
    request_timeout: float
    response_topic: str | None
    retry_first_connect: bool
    tracing: bool
    watch_lifetime: float


@attrs.frozen(kw_only=True)
class ConnectionSettings:
    """Where the broker is and how to talk to it. Times are in seconds. The repr shows no secret.

    Raises :class:`~statestore_client.SettingsError` when a value cannot work.
    """

    host: str = attrs.field(validator=_non_empty)
    port: int = attrs.field(default=1883, validator=_port)
    #: Other addresses of the same broker, or of its standbys: ``host`` or ``host:port`` (default: ``port``). All take
    #: turns; each dial has a head start of a tenth of a second. Also one text with commas.
    alternates: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_addresses)
    #: None gives every client an id of its own. Two connections with one id disconnect each other.
    client_id: str | None = attrs.field(default=None, validator=_client_id)
    tls: bool = False
    websocket: bool = False
    websocket_path: str = attrs.field(default="/mqtt", validator=_path)
    username: str | None = attrs.field(default=None, validator=_text_or_none)
    password: str | None = attrs.field(default=None, repr=False, validator=_text_or_none)
    #: Needs a username. Read again at each connect, so that a rotated password is picked up; so are the files below.
    password_file: str | None = attrs.field(default=None, validator=_text_or_none)
    #: The authorities to trust: a file of certificates, or a directory of such files. Default: the system's.
    tls_ca_file: str | None = attrs.field(default=None, validator=_text_or_none)
    tls_ca_dir: str | None = attrs.field(default=None, validator=_text_or_none)
    tls_cert_file: str | None = attrs.field(default=None, validator=_text_or_none)
    tls_key_file: str | None = attrs.field(default=None, validator=_text_or_none)
    tls_key_password_file: str | None = attrs.field(default=None, validator=_text_or_none)
    #: A Kubernetes service account token, presented by MQTT 5's enhanced authentication (method ``K8S-SAT``), and again
    #: when the file changes. With the native driver only.
    sat_file: str | None = attrs.field(default=None, validator=_text_or_none)
    #: The longest silence before the client sends a PINGREQ.
    keep_alive: float = attrs.field(default=60.0, validator=_seconds(1, 65_535))
    #: How long the broker keeps our session after the link broke. In-flight requests survive a shorter outage.
    session_expiry: float = attrs.field(default=300.0, validator=_seconds(0, 0xFFFFFFFF))
    #: True forgets a session that an earlier process with the same client id left behind.
    clean_start: bool = True
    #: For the handshakes of TCP, TLS and WebSocket and the broker's CONNACK together. Of several addresses, each has a
    #: share for all but TCP, and the last one the rest.
    connect_timeout: float = attrs.field(default=10.0, validator=_seconds(_SHORTEST_S, 3600))
    #: False: an unreachable broker fails the first connect at once. True: keep trying until the caller's deadline, also
    #: after a refusal or with a file that cannot be read: what is wrong may be put right. Later, a client always does.
    retry_first_connect: bool = False
    #: A broker that owes an answer and says nothing for so long, not even to a ping, is taken for gone, and the client
    #: connects again. With several addresses it turns to the next one after 0.8 seconds at most.
    silence_timeout: float = attrs.field(default=2.0, validator=_seconds(0.5, 3600))
    #: A store that is a client of the broker forgets a watch after this time, unless it is renewed: KEYNOTIFY is sent
    #: once more, and the key is read, at half of it. Other servers remember watches until the connection ends.
    watch_lifetime: float = attrs.field(default=3600.0, validator=_seconds(1, 0xFFFFFFFF))
    #: After a connection that lasted 5 seconds the first attempt to connect again is made at once; this is the pause
    #: when all addresses have failed. It doubles with each failure of all, up to ``max_reconnect_delay``, minus up to a
    #: half of itself by chance.
    reconnect_delay: float = attrs.field(default=0.1, validator=_seconds(0.001, 3600))
    max_reconnect_delay: float = attrs.field(default=30.0, validator=_seconds(0.001, 86_400))
    #: Deadline of a request that names none.
    request_timeout: float = attrs.field(default=10.0, validator=_seconds(0.001, 0xFFFFFFFF))
    #: Requests on the wire without an answer; more wait in this process.
    max_in_flight: int = attrs.field(default=64, validator=_window)
    #: Ask the broker to keep the client's session on its disk: the user property ``aio-persistence`` of CONNECT.
    persist_session: bool = False
    #: A span of OpenTelemetry for each request, and its context in the user properties ``traceparent`` and
    #: ``tracestate``. Needs the extra ``tracing``.
    tracing: bool = False
    #: What the broker counts the client as in its metrics: the user property ``metriccategory`` of CONNECT, which the
    #: official SDKs send as ``aiosdk-go`` and the like. None sends none.
    metric_category: str | None = attrs.field(default="aiosdk-python", validator=_category)
    #: Where answers go. ``{client_id}`` in it stands for the client id. None is what the official Rust SDK names; a
    #: broker's rules may want ``clients/{client_id}/services/statestore/_any_/command/invoke/response``.
    response_topic: str | None = attrs.field(default=None, validator=_topic)
    #: What carries the connection: this package's own MQTT client, or the library paho-mqtt.
    driver: Literal["native", "paho"] = "native"

    def __attrs_post_init__(self) -> None:
        for name in ("tls", "websocket", "clean_start", "retry_first_connect", "persist_session", "tracing"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.driver not in ("native", "paho"):
            raise SettingsError(f"driver must be 'native' or 'paho', not {self.driver!r}", argument="driver")
        if self.max_reconnect_delay < self.reconnect_delay:
            raise SettingsError("max_reconnect_delay must not be less than reconnect_delay")
        if self.password is not None and self.password_file is not None:
            raise SettingsError("give either password or password_file, not both", argument="password_file")
        if (self.password is not None or self.password_file is not None) and self.username is None:
            name = "password" if self.password_file is None else "password_file"
            raise SettingsError(f"{name} needs a username", argument=name)
        for name in ("tls_key_file", "tls_key_password_file"):
            if getattr(self, name) is not None and self.tls_cert_file is None:
                raise SettingsError(f"{name} needs tls_cert_file", argument=(name, "tls_cert_file"))
        if self.sat_file is not None and (self.username is not None or self.driver != "native"):
            raise SettingsError("sat_file needs driver='native' and takes the place of username and password")
        if self.tls_ca_file is not None and self.tls_ca_dir is not None:
            raise SettingsError("give either tls_ca_file or tls_ca_dir, not both", argument="tls_ca_file")
        if not self.tls:
            for name in ("tls_ca_file", "tls_ca_dir", "tls_cert_file"):
                if getattr(self, name) is not None:
                    raise SettingsError(f"{name} is given but tls is off; use mqtts:// or tls=True", argument=name)

    @property
    def url(self) -> str:
        """The address without user, password and options, fit for logs."""
        scheme = {v[:2]: k for k, v in SCHEMES.items()}[(self.tls, self.websocket)]
        addresses = ",".join(write_address(host, port) for host, port in self.addresses)
        return f"{scheme}://{addresses}" + (self.websocket_path if self.websocket else "")

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of the first address, and of the alternates."""
        return ((self.host, self.port), *(read_address(text, self.port) for text in self.alternates))

    def of_each_address(self) -> tuple[ConnectionSettings, ...]:
        """The same for each address alone."""
        addresses = self.addresses
        if len(addresses) == 1:
            return (self,)
        return tuple(self.evolve(host=h, port=p, alternates=()) for h, p in addresses)

    def evolve(self, **changes: Unpack[ConnectionOptions]) -> ConnectionSettings:
        """A copy with other values; raises :class:`SettingsError` for names that do not exist."""
        known = {a.name for a in attrs.fields(ConnectionSettings)}
        if unknown := sorted(set(changes) - known):
            raise _unknown_settings(unknown, known)
        return attrs.evolve(self, **changes)

    @classmethod
    def from_url(cls, url: str, **overrides: Unpack[ConnectionOptions]) -> ConnectionSettings:
        """Settings from ``mqtt[s]://[user[:password]@]host[:port]`` or ``ws[s]://…/path``; options may follow ``?``.

        ``mqtt://broker:1883?client_id=pump-7&keep_alive=30``. Several addresses of one broker are separated by commas:
        ``mqtt://a:1883,b:1883``. Keyword arguments win over the URL.
        """
        if not isinstance(url, str):
            raise SettingsError(f"a URL is text, not {type(url).__name__}")
        return cls._of_texts(*read_url(url), overrides)

    @classmethod
    def from_env(
        cls, env: Mapping[str, str] | None = None, **overrides: Unpack[ConnectionOptions]
    ) -> ConnectionSettings:
        """Settings from the ``AIO_*`` environment variables of the official SDKs (state store facts, 3.4).

        As theirs, and unlike those of a URL, the defaults are TLS, port 8883, a session expiry of an hour, and no clean
        start. ``env`` takes the place of the process's own environment. Keyword arguments win.
        """
        env = os.environ if env is None else env
        if "AIO_BROKER_HOSTNAME" not in env and "host" not in overrides:
            raise SettingsError("the environment variable AIO_BROKER_HOSTNAME is not set; it names the broker's host")
        return cls._of_texts(*read_environment(env), overrides)

    @classmethod
    def from_connection_string(cls, text: str, **overrides: Unpack[ConnectionOptions]) -> ConnectionSettings:
        """Settings from ``HostName=…;TcpPort=…;UseTls=…;ClientId=…``, as the .NET SDK has them (facts, 3.4).

        The other names: CaFile, CertFile, KeyFile, KeyPasswordFile, Username, PasswordFile, SatAuthFile, KeepAlive,
        SessionExpiry, CleanStart; in any case and order. Times are seconds or ISO 8601 durations (``PT60S``). What is
        not named has the defaults of :meth:`from_env`. Keyword arguments win.
        """
        if not isinstance(text, str):
            raise SettingsError(f"a connection string is text, not {type(text).__name__}")
        return cls._of_texts(*read_connection_string(text), overrides)

    @classmethod
    def from_mounts(
        cls, env: Mapping[str, str] | None = None, **overrides: Unpack[ConnectionOptions]
    ) -> ConnectionSettings:
        """Settings of a connector from the files that Kubernetes mounts for it (facts, 3.4).

        ``CONNECTOR_CONFIGURATION_MOUNT_PATH`` is a directory with the JSON file ``MQTT_CONNECTION_CONFIGURATION``;
        ``CONNECTOR_ID`` is the client id, ``BROKER_TLS_TRUST_BUNDLE_CACERT_MOUNT_PATH`` a directory of certificates to
        trust, and ``BROKER_SAT_MOUNT_PATH`` the file of the service account token. Keyword arguments win.
        """
        return cls._of_texts(*read_mounts(os.environ if env is None else env), overrides)

    @classmethod
    def _of_texts(
        cls, values: dict[str, Any], sources: Mapping[str, str], overrides: Mapping[str, Any]
    ) -> ConnectionSettings:
        """Settings whose texts become what their fields hold; ``sources`` says where each came from, for messages."""
        fields = attrs.fields_dict(cls)
        values = {
            name: _from_text(str(fields[name].type), value, sources.get(name, name))
            if isinstance(value, str) and name in fields
            else value
            for name, value in values.items()
        } | dict(overrides)
        if unknown := sorted(set(values) - set(fields)):
            raise _unknown_settings(unknown, fields)
        return cls(**values)


def _unknown_settings(names: Collection[str], known: Collection[str]) -> SettingsError:
    """For names of settings that do not exist, with what was meant, as far as their letters tell."""
    from difflib import get_close_matches  # for an error only: importing it takes time

    known = sorted(known)
    # By their letters alone, with and without the prefix: ``cafile`` and ``ca_file`` stand for ``tls_ca_file``.
    spelled = {name.removeprefix(prefix).replace("_", ""): name for prefix in ("", "tls_") for name in known}
    letters = [name.replace("_", "").lower() for name in names]
    near = [spelled[match] for name in letters for match in get_close_matches(name, spelled, n=1)]
    hint = f"did you mean {', '.join(near)}? Known" if near else "known"
    return SettingsError(f"unknown setting {', '.join(names)}; {hint}: {', '.join(known)}")


def _from_text(kind: str, text: str, source: str) -> Any:
    if kind.startswith("bool"):
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise SettingsError(f"{source} must be true or false, not {text!r}")
    try:
        if kind.startswith("int"):
            return int(text)
        if kind.startswith("float"):
            return float(text)
    except ValueError:
        raise SettingsError(f"{source} must be a number, not {text!r}") from None
    return text
