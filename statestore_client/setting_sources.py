"""Where settings come from: URLs, environment variables, connection strings, mounted files.

Each reader returns the settings by name, as texts or as what they are, and where each text came from, for the message
when it cannot be used. :class:`~statestore_client.ConnectionSettings` makes values of the texts and checks them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from statestore_client.errors import SettingsError

#: Settings by name, and the sources of those that are texts.
Found: TypeAlias = tuple[dict[str, Any], dict[str, str]]

#: URL scheme -> (TLS, WebSocket, default port). 8883 and 1883 are IANA's ports for MQTT.
SCHEMES: Final[Mapping[str, tuple[bool, bool, int]]] = {
    "mqtt": (False, False, 1883),
    "mqtts": (True, False, 8883),
    "ws": (False, True, 80),
    "wss": (True, True, 443),
}
#: A host has 253 characters, the path of a socket 107 bytes.
_LONGEST_SITE_ADDRESS: Final = 300
_ENCODE_PASSWORDS: Final = "in user and password, write / ? # @ and : as %2F %3F %23 %40 and %3A"
#: What the official SDKs assume where nothing is said (state store facts, 3.4).
_OFFICIAL_DEFAULTS: Final[Mapping[str, Any]] = {
    "port": 8883,
    "tls": True,
    "clean_start": False,
    "session_expiry": 3600.0,
}
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "AIO_BROKER_HOSTNAME": "host",
    "AIO_BROKER_TCP_PORT": "port",
    "AIO_MQTT_USE_TLS": "tls",
    "AIO_TLS_CA_FILE": "tls_ca_file",
    "AIO_TLS_CERT_FILE": "tls_cert_file",
    "AIO_TLS_KEY_FILE": "tls_key_file",
    "AIO_TLS_KEY_PASSWORD_FILE": "tls_key_password_file",
    "AIO_MQTT_CLEAN_START": "clean_start",
    "AIO_MQTT_KEEP_ALIVE": "keep_alive",
    "AIO_MQTT_CLIENT_ID": "client_id",
    "AIO_MQTT_SESSION_EXPIRY": "session_expiry",
    "AIO_MQTT_USERNAME": "username",
    "AIO_MQTT_PASSWORD_FILE": "password_file",
    "AIO_SAT_FILE": "sat_file",
}
#: The names of a connection string, in lower case.
_CONNECTION_STRING: Final[Mapping[str, str]] = {
    "hostname": "host",
    "tcpport": "port",
    "usetls": "tls",
    "clientid": "client_id",
    "cafile": "tls_ca_file",
    "certfile": "tls_cert_file",
    "keyfile": "tls_key_file",
    "keypasswordfile": "tls_key_password_file",
    "username": "username",
    "passwordfile": "password_file",
    "satauthfile": "sat_file",
    "keepalive": "keep_alive",
    "sessionexpiry": "session_expiry",
    "cleanstart": "clean_start",
}
_CONFIGURATION: Final = "CONNECTOR_CONFIGURATION_MOUNT_PATH"
_TRUST_BUNDLE: Final = "BROKER_TLS_TRUST_BUNDLE_CACERT_MOUNT_PATH"
_TOKEN: Final = "BROKER_SAT_MOUNT_PATH"  # noqa: S105 - the name of a variable, not a secret
#: The numbers of the mounted file, and their settings.
_MOUNTED_NUMBERS: Final[Mapping[str, str]] = {
    "keepAliveSeconds": "keep_alive",
    "maxInflightMessages": "max_in_flight",
    "sessionExpirySeconds": "session_expiry",
}
#: Scheme and user, addresses, and the rest of a URL.
_AUTHORITY: Final = re.compile(r"([a-z]+://(?:[^/?#]*@)?)([^/?#@]*)(.*)", re.DOTALL | re.IGNORECASE)
#: ISO 8601 durations as .NET writes them: days, hours, minutes, seconds.
_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)


def write_address(host: str, port: int) -> str:
    """As it is in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_address(text: str, default_port: int) -> tuple[str, int]:
    """``host`` or ``host:port``; an IPv6 address in brackets. Raises SettingsError."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.port != 0 and parts.netloc == text and "@" not in text and "," not in text:
            return parts.hostname, parts.port or default_port
    raise SettingsError(f"an address must be 'host' or 'host:port', and IPv6 '[address]:port', not {text!r}")


def check_site_address(url: str) -> None:
    """Raises SettingsError for what is not the address of a site. libzmq takes any port, looks for hosts of any name,
    and ends a path at its first zero byte.
    """
    scheme, _, address = url.partition("://")
    if url.isprintable() and len(url) <= _LONGEST_SITE_ADDRESS:
        if scheme == "tcp":
            with contextlib.suppress(SettingsError):
                if read_address(address, 0)[1]:
                    return
        elif scheme == "ipc" and address:
            return
    raise SettingsError(
        f"no site can be at {url[:_LONGEST_SITE_ADDRESS]!r}: addresses are tcp://host:port or ipc://path"
    )


def read_url(url: str) -> Found:
    """``mqtt[s]://[user[:password]@]host[:port][,host[:port]…][?option=…]`` or ``ws[s]://…/path``."""
    first, others = _first_address(url)
    try:
        parts = urlsplit(first)
        port = parts.port
    except ValueError as error:
        # What urllib takes for a port may be part of the password.
        why = _ENCODE_PASSWORDS if "@" in url else error
        raise SettingsError(f"{_without_secrets(url)!r} is not a valid URL: {why}") from None
    if parts.fragment or "@" in parts.path:
        # A '#' or '/' in an unencoded password ends the host early: we would connect to the user's name.
        raise SettingsError(f"{_without_secrets(url)!r} is not a valid URL: {_ENCODE_PASSWORDS}")
    if parts.scheme not in SCHEMES:
        raise SettingsError(
            f"the URL must start with mqtt://, mqtts://, ws:// or wss://, not {_without_secrets(url)!r}"
        )
    if not parts.hostname:
        raise SettingsError(f"the URL names no host: {_without_secrets(url)!r}")
    tls, websocket, default_port = SCHEMES[parts.scheme]
    if not websocket and parts.path not in ("", "/"):
        raise SettingsError(f"a {parts.scheme}:// URL has no path: {_without_secrets(url)!r}")
    values: dict[str, Any] = {
        "host": parts.hostname,
        "port": default_port if port is None else port,
        "tls": tls,
        "websocket": websocket,
    }
    if websocket and parts.path:
        values["websocket_path"] = parts.path
    if parts.username is not None:
        values["username"] = _unquoted("user name", parts.username)
    if parts.password is not None:
        values["password"] = _unquoted("password", parts.password)
    if others:
        values["alternates"] = tuple(write_address(*read_address(text, default_port)) for text in others)
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if "@" in name:
            raise SettingsError(f"{_without_secrets(url)!r} is not a valid URL: {_ENCODE_PASSWORDS}")
        values[name] = text
    return values, {}


def _unquoted(what: str, text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise SettingsError(f"the {what} of the URL is not UTF-8 once its %XX are bytes; encode it as UTF-8") from None


def _first_address(url: str) -> tuple[str, list[str]]:
    """A URL with its first address alone, and the other addresses."""
    match = _AUTHORITY.fullmatch(url)
    if match is None:
        return url, []
    start, addresses, rest = match.groups()
    first, *others = addresses.split(",")
    return start + first + rest, others


def read_environment(env: Mapping[str, str]) -> Found:
    """The ``AIO_*`` variables."""
    named = {name: variable for variable, name in _ENVIRONMENT.items() if variable in env}
    return {**_OFFICIAL_DEFAULTS, **{name: env[variable] for name, variable in named.items()}}, named


def read_connection_string(text: str) -> Found:
    """``HostName=…;TcpPort=…``."""
    values: dict[str, Any] = dict(_OFFICIAL_DEFAULTS)
    sources = {}
    for part in filter(str.strip, text.split(";")):
        written, separator, value = part.partition("=")
        name = _CONNECTION_STRING.get(written.strip().lower())
        if not separator or name is None:
            # The part may be a secret that was not quoted: only the name is shown.
            raise SettingsError(
                f"the connection string has {written.strip()[:40]!r}; it is made of Name=value; with the names "
                + ", ".join(_CONNECTION_STRING)
            )
        if name in sources:
            raise SettingsError(f"the connection string has {written.strip()} twice")
        sources[name] = written.strip()
        values[name] = _seconds(value.strip()) if name in ("keep_alive", "session_expiry") else value.strip()
    if "host" not in sources:
        raise SettingsError("the connection string names no HostName")
    return values, sources


def _seconds(text: str) -> str | float:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return text
    days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def read_mounts(env: Mapping[str, str]) -> Found:
    """The files of a connector."""
    if _CONFIGURATION not in env:
        raise SettingsError(f"the environment variable {_CONFIGURATION} is not set; it names the mounted directory")
    path = Path(env[_CONFIGURATION]) / "MQTT_CONNECTION_CONFIGURATION"
    try:
        mounted = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:  # UnicodeDecodeError and JSONDecodeError are among them
        raise SettingsError(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(mounted, dict) or not isinstance(mounted.get("host"), str):
        raise SettingsError(f'{str(path)!r} has no "host": "name:port"')
    host, colon, port = mounted["host"].rpartition(":")
    uses_tls = _mode(mounted, "tls", "mode", path) != "disabled"
    values: dict[str, Any] = {
        **_OFFICIAL_DEFAULTS,
        "host": (host if colon else port).strip("[]"),
        "tls": uses_tls,
        "clean_start": False,
    }
    sources = {}
    if colon:
        values["port"], sources["port"] = port, f"the port in {str(path)!r}"
    for written, name in _MOUNTED_NUMBERS.items():
        if written in mounted:
            values[name] = mounted[written]
    if "CONNECTOR_ID" in env:
        values["client_id"] = env["CONNECTOR_ID"]
    if uses_tls and _TRUST_BUNDLE in env:
        values["tls_ca_dir"] = env[_TRUST_BUNDLE]
    if "serviceaccounttoken" in _mode(mounted, "authentication", "method", path):
        if _TOKEN not in env:
            raise SettingsError(f"{str(path)!r} asks for a service account token and {_TOKEN} is not set")
        values["sat_file"] = env[_TOKEN]
    return values, sources


def _mode(mounted: dict[str, Any], section: str, name: str, path: Path) -> str:
    """A word of the mounted file, in lower case; empty when it is not there."""
    inner = mounted.get(section, {})
    if not isinstance(inner, dict) or not isinstance(inner.get(name, ""), str):
        raise SettingsError(f"{str(path)!r}: {section} must be an object with a text {name!r}")
    return str(inner.get(name, "")).lower()


def _without_secrets(url: str) -> str:
    """What of a URL that cannot be read may be shown: no user, no password, no options."""
    _, at, address = url.rpartition("@")
    return ("…@" if at else "") + address.partition("?")[0]
