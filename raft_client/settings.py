"""How to reach a cluster: one frozen, validated, picklable value for both shells, Spark and the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict, Unpack

import attrs

from raft_client.errors import SettingsError
from raft_client.wire.configuration import is_peer_url

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
    raise SettingsError(f"seeds must be URLs of peers, not {type(value).__name__}", argument="seeds")


def _seeds(_instance: RaftSettings, _attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    if not value or value == ("",):
        raise SettingsError("seeds must name at least one peer, such as tcp://10.0.0.1:8047", argument="seeds")
    for url in value:
        if not is_peer_url(url):
            raise SettingsError(f"seeds must be tcp://host:port or ipc:///path, not {url!r}", argument="seeds")
    if len(set(value)) < len(value):
        raise SettingsError(f"seeds must differ from each other: {', '.join(value)}", argument="seeds")


def _ident(_instance: RaftSettings, _attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str):
        raise SettingsError(f"cluster must be a text, not {type(value).__name__}", argument="cluster")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(f"cluster is not valid text: {error}", argument="cluster") from None


def _seconds(low: float, high: float) -> Any:
    def check(_instance: RaftSettings, attribute: attrs.Attribute[float | None], value: float | None) -> None:
        if value is None and attribute.default is None:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise SettingsError(
                f"{attribute.name} must be seconds from {low:g} to {high:.10g}, not {value!r}", argument=attribute.name
            )

    return check


def _number(low: int, high: int) -> Any:
    def check(_instance: RaftSettings, attribute: attrs.Attribute[int], value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise SettingsError(
                f"{attribute.name} must be a number from {low} to {high}, not {value!r}", argument=attribute.name
            )

    return check


def _curve_key(_instance: RaftSettings, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None and not _is_curve_key(value):
        # Not the value itself: it may be the secret key.
        raise SettingsError(f"{attribute.name} must be a CURVE key: 40 characters of Z85", argument=attribute.name)


def _is_curve_key(value: object) -> bool:
    return isinstance(value, str) and len(value) == _Z85_KEY_LENGTH and _Z85.issuperset(value)


def _key_of_each_peer(value: object) -> tuple[tuple[str, str], ...]:
    """URL -> key, or ``URL=KEY`` with commas between them: no key has a comma in it, and no URL a "="."""
    if isinstance(value, str):
        pairs = [part.strip().partition("=") for part in value.split(",")] if value else []
        return tuple((url, key) for url, _, key in pairs)
    if isinstance(value, Mapping):
        return tuple(value.items())
    if isinstance(value, tuple):  # as it is kept
        return value
    raise SettingsError(
        f"curve_peer_keys must be a mapping of URLs to keys, not {type(value).__name__}", argument="curve_peer_keys"
    )


def _peer_keys(_instance: RaftSettings, _attribute: attrs.Attribute[Any], value: tuple[tuple[str, str], ...]) -> None:
    for pair in value:
        match pair:
            case (str(url), key) if is_peer_url(url):
                if not _is_curve_key(key):
                    raise SettingsError(
                        f"the key of {url} in curve_peer_keys must be 40 characters of Z85", argument="curve_peer_keys"
                    )
            case _:
                raise SettingsError(
                    "curve_peer_keys must name peers by their URLs, tcp://host:port or ipc:///path",
                    argument="curve_peer_keys",
                )


class RaftOptions(TypedDict, total=False):
    """The settings by name, as keyword arguments have them: what each means stands at :class:`RaftSettings`."""

    seeds: str | Iterable[str]
    cluster: str
    request_timeout: float
    response_timeout: float
    election_grace: float
    max_in_flight: int
    heartbeat: float | None
    broadcast_timeout: float
    progress_interval: float
    watch_bytes: int
    curve_server_key: str | None
    curve_peer_keys: Mapping[str, str] | str
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
    #: cluster by mistake. It is not a secret and protects nothing; CURVE does.
    cluster: str = attrs.field(default="", validator=_ident)
    #: Deadline of a call that names none, over all attempts.
    request_timeout: float = attrs.field(default=10.0, validator=_seconds(0.001, 0xFFFFFFFF))
    #: After this time without a word from the leader, it is searched again (``SERVER_RESPONSE_TTL``).
    response_timeout: float = attrs.field(default=0.5, validator=_seconds(0.01, 3600))
    #: The longest pause between two questions who the leader is (``SERVER_ELECTION_GRACE_MS``).
    election_grace: float = attrs.field(default=0.3, validator=_seconds(0.001, 3600))
    #: Requests on the wire without a final answer; more wait in this process.
    max_in_flight: int = attrs.field(default=_DEFAULT_IN_FLIGHT, validator=_number(1, 65_535))
    #: Ask who the peers are this often while nothing else is asked, so that the list does not outlive them; in a thread
    #: or task of its own. None: an idle client is silent.
    heartbeat: float | None = attrs.field(default=None, validator=_seconds(0.1, 0xFFFFFFFF))
    #: After this time without a broadcast, subscriptions and watches search the leader again (broadcastTimeout).
    broadcast_timeout: float = attrs.field(default=1.0, validator=_seconds(0.1, 3600))
    #: A quiet watch hands out a ``Progress`` this often, if the log went on without it.
    progress_interval: float = attrs.field(default=10.0, validator=_seconds(0.01, 0xFFFFFFFF))
    #: What may wait for the readers of all watches with one codec; each has an equal share, and its own
    #: ``queue_bytes`` at most.
    watch_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=_number(1, 2**53))
    #: The peers' public key. With it everything is encrypted and peers are authenticated; Node peers have no CURVE.
    curve_server_key: str | None = attrs.field(default=None, validator=_curve_key)
    #: The public keys of peers that have one of their own: URL -> key, or ``URL=KEY,URL=KEY``. The key holds for what
    #: the peer broadcasts, too. Peers that are not named have ``curve_server_key``; without one they are not talked to.
    #: A URL that is named twice, in a text, has two keys while they are changed: after a refusal the other is tried.
    curve_peer_keys: tuple[tuple[str, str], ...] = attrs.field(
        default=(), converter=_key_of_each_peer, validator=_peer_keys
    )
    #: This client's own keys. Without them each client makes a pair of its own, which peers that know their clients,
    #: such as ours, do not let in.
    curve_public_key: str | None = attrs.field(default=None, validator=_curve_key)
    curve_secret_key: str | None = attrs.field(default=None, validator=_curve_key, repr=False)

    def __attrs_post_init__(self) -> None:
        if (self.curve_public_key is None) != (self.curve_secret_key is None):
            raise SettingsError(
                "curve_public_key and curve_secret_key belong together; give both or neither",
                argument=("curve_public_key", "curve_secret_key"),
            )
        if self.curve_public_key is not None and self.curve_server_key is None and not self.curve_peer_keys:
            raise SettingsError(
                "client keys without curve_server_key or curve_peer_keys have no effect; give the peers' public keys",
                argument=("curve_server_key", "curve_peer_keys"),
            )

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
            raise SettingsError(
                f"the environment variable {_variable('seeds')} is not set; it names the peers' URLs, as ZMQRAFT_URL "
                "does for the command line"
            )
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
        kind = str(field.type).partition(" ")[0]
        if kind in ("int", "float"):
            return int(text) if kind == "int" else float(text)
    except ValueError:
        raise SettingsError(f"{source} must be a number, not {text!r}") from None
    return text
