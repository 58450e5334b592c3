"""How to reach a cluster: one frozen, validated, picklable value for both shells, Spark and the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict, Unpack

import attrs

from raft_client.errors import SettingsError
from raft_client.wire.urls import is_peer_url

__all__ = ["RaftOptions", "RaftSettings"]

#: The alphabet of Z85, in which ZeroMQ writes CURVE keys (ZeroMQ RFC 32).
_Z85: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")
_Z85_KEY_LENGTH: Final = 40
#: A third of a peer's ROUTER queue of 1,000: one client cannot fill it alone.
_DEFAULT_IN_FLIGHT: Final = 256


def _seed_urls(value: object) -> tuple[str, ...]:
    """One URL, several in one text with commas between them, or an iterable of URLs."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, Mapping)):
        return tuple(value)
    raise SettingsError(f"seeds must be URLs of peers, not {type(value).__name__}")


def _seeds(_instance: RaftSettings, _attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    if not value or value == ("",):
        raise SettingsError("seeds must name at least one peer, such as tcp://10.0.0.1:8047")
    for url in value:
        if not is_peer_url(url):
            raise SettingsError(f"a seed must be tcp://host:port, not {url!r}")
    if len(set(value)) < len(value):
        raise SettingsError(f"seeds must differ from each other: {', '.join(value)}")


def _ident(_instance: RaftSettings, _attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str):
        raise SettingsError(f"cluster must be a text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(f"cluster is no valid text: {error}") from None


def _seconds(low: float, high: float) -> Any:
    def check(_instance: RaftSettings, attribute: attrs.Attribute[float], value: float) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise SettingsError(f"{attribute.name} must be seconds from {low:g} to {high:g}, not {value!r}")

    return check


def _window(_instance: RaftSettings, _attribute: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65_535:
        raise SettingsError(f"max_in_flight must be a number from 1 to 65535, not {value!r}")


def _curve_key(_instance: RaftSettings, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, str) or len(value) != _Z85_KEY_LENGTH or not _Z85.issuperset(value):
        # Not the value itself: it may be the secret key.
        raise SettingsError(f"{attribute.name} must be a CURVE key: 40 characters of Z85")


class RaftOptions(TypedDict, total=False):
    """The settings by name, as keyword arguments have them: what each means stands at :class:`RaftSettings`."""

    seeds: str | Iterable[str]
    cluster: str
    request_timeout: float
    response_timeout: float
    election_grace: float
    max_in_flight: int
    curve_server_key: str | None
    curve_public_key: str | None
    curve_secret_key: str | None


@attrs.frozen(kw_only=True)
class RaftSettings:
    """Where a cluster's peers are and how to talk to them. Times are in seconds. The repr shows no secret.

    Raises :class:`~raft_client.SettingsError` when a value cannot work.
    """

    #: Peers to ask first; one that is up is enough, for it names the others.
    seeds: tuple[str, ...] = attrs.field(converter=_seed_urls, validator=_seeds)
    #: The cluster ident (``secret`` in the configuration of Node peers). It keeps clients from talking to the wrong
    #: cluster by mistake. It is no secret and protects nothing; CURVE does.
    cluster: str = attrs.field(default="", validator=_ident)
    #: Deadline of a call that names none, over all attempts.
    request_timeout: float = attrs.field(default=10.0, validator=_seconds(0.001, 0xFFFFFFFF))
    #: A leader that says nothing for so long is looked for anew (``SERVER_RESPONSE_TTL``).
    response_timeout: float = attrs.field(default=0.5, validator=_seconds(0.01, 3600))
    #: The longest pause between two questions who the leader is (``SERVER_ELECTION_GRACE_MS``).
    election_grace: float = attrs.field(default=0.3, validator=_seconds(0.001, 3600))
    #: Requests on the wire without a final answer; more wait in this process.
    max_in_flight: int = attrs.field(default=_DEFAULT_IN_FLIGHT, validator=_window)
    #: The peers' public key. With it everything is encrypted and peers are authenticated; Node peers have no CURVE.
    curve_server_key: str | None = attrs.field(default=None, validator=_curve_key)
    #: This client's own keys. Without them each client makes a pair of its own.
    curve_public_key: str | None = attrs.field(default=None, validator=_curve_key)
    curve_secret_key: str | None = attrs.field(default=None, validator=_curve_key, repr=False)

    def __attrs_post_init__(self) -> None:
        if (self.curve_public_key is None) != (self.curve_secret_key is None):
            raise SettingsError("curve_public_key and curve_secret_key belong together; give both or neither")
        if self.curve_public_key is not None and self.curve_server_key is None:
            raise SettingsError("client keys without curve_server_key have no effect; give the peers' public key")

    @property
    def ident(self) -> bytes:
        """The cluster ident as it stands on the wire."""
        return self.cluster.encode()

    def evolve(self, **changes: Unpack[RaftOptions]) -> RaftSettings:
        """A copy with other values; raises :class:`SettingsError` for names that do not exist."""
        _check_names(changes)
        return attrs.evolve(self, **changes)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, **overrides: Unpack[RaftOptions]) -> RaftSettings:
        """Settings from ``ZMQRAFT_*`` variables: ``ZMQRAFT_SEEDS=tcp://10.0.0.1:8047,tcp://10.0.0.2:8047`` and so on.

        Every setting has one, named after it. Keyword arguments win over the environment.
        """
        env = os.environ if env is None else env
        if _variable("seeds") not in env and "seeds" not in overrides:
            raise SettingsError(f"the environment variable {_variable('seeds')} is not set; it names the peers' URLs")
        values: dict[str, Any] = {}
        for field in attrs.fields(cls):
            variable = _variable(field.name)
            if variable in env and field.name not in overrides:
                values[field.name] = _from_text(field, env[variable], variable)
        _check_names(overrides)
        values.update(overrides)
        return cls(**values)


def _variable(name: str) -> str:
    return f"ZMQRAFT_{name.upper()}"


def _check_names(values: Mapping[str, object]) -> None:
    known = {a.name for a in attrs.fields(RaftSettings)}
    if unknown := sorted(set(values) - known):
        raise SettingsError(f"unknown setting {', '.join(unknown)}; known: {', '.join(sorted(known))}")


def _from_text(field: attrs.Attribute[Any], text: str, source: str) -> Any:
    try:
        if str(field.type) == "int":
            return int(text)
        if str(field.type) == "float":
            return float(text)
    except ValueError:
        raise SettingsError(f"{source} must be a number, not {text!r}") from None
    return text
