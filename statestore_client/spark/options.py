"""The options of a write: checked once, at planning; frozen and picklable from then on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack

import attrs

from statestore_client import ConnectionSettings, HlcTimestamp
from statestore_client.errors import SettingsError, TimestampError

Operation: TypeAlias = Literal["set", "delete", "vdelete"]

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "operation": ("set", "delete", "vdelete"),
    "error_mode": ("fail", "continue"),
    "duplicate_keys": ("error", "last"),
    "null_value": ("error", "delete"),
}
#: How long a tombstone stays by default: rows that come more than a day late are rare.
_TOMBSTONE_TTL_S: Final = 86_400.0
_TEN_YEARS_S: Final = 10 * 365 * 86_400


def _option_name(field: str) -> str:
    """``key_column`` -> ``keyColumn``."""
    head, *rest = field.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _to_token(token: HlcTimestamp | str | None, name: str = "fencing_token") -> HlcTimestamp | None:
    if token is None or isinstance(token, HlcTimestamp):
        return token
    if not isinstance(token, str):
        raise SettingsError(
            f"{name} must be the fencing token of a lock, or its text, not {type(token).__name__}; "
            "a lease has .fencing_token"
        )
    try:
        return HlcTimestamp.parse(token)
    except TimestampError as error:
        raise SettingsError(f"{name} must be the fencing token of a lock, or its text: {error}") from None


class RowOptions(TypedDict, total=False):
    """What :func:`write_rows` and :func:`partition_writer` take by name, for editors and type checkers."""

    key_column: str
    value_column: str | None
    ttl_column: str | None
    version_column: str | None
    operation: Operation
    null_value: Literal["error", "delete"]
    tombstone_ttl: float | None
    error_mode: Literal["fail", "continue"]
    persist: bool
    retry_timeout: float
    client_id_prefix: str | None
    gc_freeze: bool


class PartitionOptions(RowOptions, total=False):
    """… and the second one alone: what it does with a key that comes twice."""

    duplicate_keys: Literal["error", "last"]


@attrs.frozen(kw_only=True)
class WriteOptions:
    """What to write and how; where to is in :class:`ConnectionSettings`. Raises :class:`SettingsError`.

    Errors name an option as whoever gave it spells it: these are Python's, ``SinkOptions`` the sink's.
    """

    key_column: str = "key"
    #: None: ``value``, unless the operation needs none.
    value_column: str | None = None
    #: Seconds after which the key expires; a null in it means never.
    ttl_column: str | None = None
    #: A timestamp or a whole number that orders the rows of one key. The state store itself compares it on each write.
    #: Of two rows with equal versions, the one that arrives last is kept.
    version_column: str | None = None
    operation: Operation = "set"
    #: What a null in the value column does: it is an error of the row, or deletes the row's key.
    null_value: Literal["error", "delete"] = "error"
    #: Seconds for which a deleted key stays as a tombstone: an empty value that carries the delete's version or token,
    #: so that the store refuses older rows which come late. None: a day with ``version_column``; without, deletes leave
    #: nothing behind.
    tombstone_ttl: float | None = None
    fencing_token: HlcTimestamp | None = attrs.field(default=None, converter=_to_token)
    #: What a row that cannot be written does: end the write, or be counted. Errors of the job always end it.
    error_mode: Literal["fail", "continue"] = "fail"
    #: Whether the values are marked as ones that must be on the broker's disk.
    persist: bool = False
    #: What a key that comes twice does: its last row of a partition wins, or it ends the write. The latter needs rows
    #: in the order of their keys, which :func:`write_rows` brings about over the whole job.
    duplicate_keys: Literal["error", "last"] = "last"
    #: Seconds without any success after which a task gives up trying to reach the broker.
    retry_timeout: float = 30.0
    #: Client ids are ``prefix-<application>-<process>-<random>``. None: the setting ``client_id``, else ``spark``.
    client_id_prefix: str | None = None
    #: Whether worker processes keep what they imported out of Python's garbage collections (``gc.freeze()``). False
    #: for workers whose other code wants to decide that; it holds for a process if no write or look-up there says True.
    gc_freeze: bool = True
    #: The key under which the commit stores the counts as JSON. The sink only.
    report_key: str | None = None

    @classmethod
    def from_names(
        cls, *, fencing_token: HlcTimestamp | str | None = None, **options: Unpack[PartitionOptions]
    ) -> WriteOptions:
        """The options by their Python names. Raises :class:`SettingsError` for one that does not exist."""
        if unknown := set(options) - _PYTHON.keys():
            raise _unknown_name(min(unknown))
        return cls(fencing_token=fencing_token, **options)

    def called(self, field: str, value: str | None = None) -> str:
        """How an option, or its choice of a value, is spelled where it was given."""
        return field if value is None else f"{field}={value!r}"

    def __attrs_post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise SettingsError(f"{self.called(name)} must be {_or(allowed)}, not {getattr(self, name)!r}")
        for name in ("key_column", "value_column", "ttl_column", "version_column", "client_id_prefix", "report_key"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise SettingsError(f"{self.called(name)} must be a non-empty text, not {value!r}")
        if not isinstance(self.retry_timeout, (int, float)) or not 0 <= self.retry_timeout <= 86_400:
            raise SettingsError(
                f"{self.called('retry_timeout')} must be seconds from 0 to 86400, not {self.retry_timeout!r}"
            )
        for name in ("gc_freeze", "persist"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{self.called(name)} must be True or False, not {getattr(self, name)!r}")
        self._check_combinations()
        self._check_tombstones()

    def _check_combinations(self) -> None:
        called = self.called
        is_set = called("operation", "set")
        if self.persist and self.operation != "set" and self.version_column is None:
            raise SettingsError(f"persist is for {is_set}, not for {self.operation}: deletions are always kept")
        if self.operation != "set" and self.ttl_column is not None:
            raise SettingsError(f"{called('ttl_column')} is for {is_set}, not for {self.operation}")
        if self.operation == "vdelete" and self.version_column is not None:
            both = f"{is_set} and {called('operation', 'delete')}"
            raise SettingsError(f"{called('version_column')} is for {both}: vdelete compares values")
        if self.operation != "set" and self.null_value == "delete":
            raise SettingsError(f"{called('null_value', 'delete')} is for {is_set}, not for {self.operation}")
        if self.operation == "delete" and self.value_column is not None:
            raise SettingsError(
                f"{called('value_column')} is not used by {called('operation', 'delete')}; use "
                f"{called('operation', 'vdelete')} to compare values"
            )
        if self.version_column is not None and self.fencing_token is not None:
            raise SettingsError(
                f"{called('version_column')} and {called('fencing_token')} exclude each other: a request carries one "
                "token, and a row's version travels as such"
            )

    def _check_tombstones(self) -> None:
        ttl, name, called = self.tombstone_ttl, self.called("tombstone_ttl"), self.called
        if ttl is None:
            return
        if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 1 <= ttl <= _TEN_YEARS_S:
            raise SettingsError(f"{name} must be seconds from 1 to {_TEN_YEARS_S}, not {ttl!r}")
        if not self._deletes:
            deletes = f"{called('null_value', 'delete')} or {called('operation', 'delete')}"
            raise SettingsError(f"{name} is for deletes: {deletes}")
        if self.version_column is None and self.fencing_token is None:
            raise SettingsError(
                f"{name} needs {called('version_column')} or {called('fencing_token')}: a tombstone keeps out what is "
                "older than itself"
            )

    @property
    def _deletes(self) -> bool:
        return self.operation == "delete" or self.null_value == "delete"

    @property
    def tombstone_s(self) -> float | None:
        """For how long a deleted key stays as a tombstone; None: deletes leave nothing behind."""
        if self.tombstone_ttl is None and self._deletes and self.version_column is not None:
            return _TOMBSTONE_TTL_S
        return self.tombstone_ttl

    @property
    def value_name(self) -> str | None:
        """The value column, None for an operation without values."""
        return None if self.operation == "delete" else (self.value_column or "value")


class SinkOptions(WriteOptions):
    """The same, given as options of the sink."""

    def called(self, field: str, value: str | None = None) -> str:
        """``key_column`` is ``keyColumn`` there, and nothing is in quotes."""
        return _option_name(field) if value is None else f"{_option_name(field)}={value}"


_Options = TypeVar("_Options", bound=WriteOptions)


def refuse_whole_job_options(options: _Options) -> _Options:
    """The options of a writer that sees one partition at a time. Raises :class:`SettingsError` if they need more."""
    if options.duplicate_keys == "error":
        raise SettingsError(
            f"{options.called('duplicate_keys', 'error')} needs all rows of the job, and this writer sees one "
            "partition at a time: use statestore_client.spark.write_rows, which refuses repeated keys and has order_by "
            "to choose among them, or "
            "reduce the data with latest_by_key first"
        )
    return options


def connection(settings: ConnectionSettings | str) -> ConnectionSettings:
    """Settings, given as such or as a URL. Raises :class:`SettingsError` for anything else."""
    if isinstance(settings, ConnectionSettings):
        return settings
    if isinstance(settings, str):
        return ConnectionSettings.from_url(settings)
    raise SettingsError(
        f"where to write or read is a URL or ConnectionSettings, not {type(settings).__name__}"
        + ("; its .settings are" if hasattr(settings, "settings") else "")
    )


#: Names of options that people look for and that are none -> what there is instead.
_INSTEAD: Final[Mapping[str, str]] = {
    "path": "there are no tables or folders, keys come from {key}, and a URL names the broker",
    "topic": "there are no topics, keys come from {key}",
    "kafka.bootstrap.servers": "a URL names the broker",
    "operationcolumn": "make the values of rows to delete null, and say {delete}",
}


def _instead(name: str, plain: str, kind: type[WriteOptions]) -> SettingsError:
    """For a name in :data:`_INSTEAD`."""
    called = kind().called
    text = _INSTEAD[plain].format(key=called("key_column"), delete=called("null_value", "delete"))
    return SettingsError(f"unknown option {name}: {text}")


def _near(lowered: str, known: Mapping[str, str]) -> str | None:
    """The known name that was meant, by what it begins with or by its letters; ``known`` has them in lower case."""
    begins = [name for name in known if name.startswith(lowered)]
    near = begins if len(begins) == 1 else difflib.get_close_matches(lowered, known, n=1)
    return known[near[0]] if near else None


#: What functions take by name: all but the sink's own option.
_PYTHON: Final[Mapping[str, str]] = {a.name: a.name for a in attrs.fields(WriteOptions) if a.name != "report_key"}


def _unknown_name(name: str) -> SettingsError:
    """For Python's names, which may have been meant as the sink's or as settings of the connection."""
    plain = name.replace("_", "").lower()
    if plain == "reportkey":
        return SettingsError("report_key is for the sink: the counts are returned, or in the report that was given")
    if plain in _INSTEAD:
        return _instead(name, plain, WriteOptions)
    settings = {a.name.replace("_", ""): a.name for a in attrs.fields(ConnectionSettings)}
    if plain in settings:
        setting = settings[plain]
        return SettingsError(
            f"{setting} is a setting of the connection: give ConnectionSettings.from_url(url, {setting}=...) "
            "in place of the URL"
        )
    near = _near(plain, {known.replace("_", ""): known for known in _PYTHON})
    hint = f"; did you mean {near}?" if near else "."
    return SettingsError(f"unknown option {name}{hint} Known options: {', '.join(sorted(_PYTHON))}")


def _or(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


# -- from Spark's texts ------------------------------------------------------------------------------------------------


def _number(kind: Callable[[str], Any], what: str) -> Callable[[str, str], Any]:
    def convert(name: str, text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise SettingsError(f"the option {name} must be {what}, not {text!r}") from None

    return convert


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SettingsError(f"the option {name} must be true or false, not {text!r}")
    return text.lower() == "true"


def _as_is(_name: str, text: str) -> str:
    return text


_whole_number: Final = _number(int, "a whole number")
_seconds: Final = _number(float, "a number of seconds")
_CONVERTERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "fencing_token": lambda name, text: _to_token(text, name),
    "retry_timeout": _seconds,
    "tombstone_ttl": _seconds,
    "gc_freeze": _boolean,
    "persist": _boolean,
}

#: Lower-cased option -> (its name, field). Spark hands options over in lower case.
_WRITE: Final[Mapping[str, tuple[str, str]]] = {
    _option_name(a.name).lower(): (_option_name(a.name), a.name) for a in attrs.fields(WriteOptions)
}
_SETTINGS: Final[Mapping[str, tuple[str, str]]] = {
    "maxinflight": ("maxInFlight", "max_in_flight"),
    "requesttimeout": ("requestTimeout", "request_timeout"),
}
#: ``mqtt.tlsCaFile`` -> ``tls_ca_file``. The client id is ours to choose: two workers with one would fight.
_MQTT: Final[Mapping[str, tuple[str, str]]] = {
    f"mqtt.{_option_name(a.name).lower()}": (f"mqtt.{_option_name(a.name)}", a.name)
    for a in attrs.fields(ConnectionSettings)
    if a.name != "client_id"
}


def parse_options(
    options: Mapping[str, str], env: Mapping[str, str] | None = None
) -> tuple[ConnectionSettings, WriteOptions]:
    """The settings and the write options in Spark's options, whose names' case does not matter.

    Without ``url``, the ``AIO_*`` environment variables of the driver tell where the broker is. Raises
    :class:`SettingsError` for an unknown or unusable option; the message names it and what it takes.
    """
    remaining = {name.lower(): text for name, text in options.items()}
    url = remaining.pop("url", None)
    connection = _take(remaining, _MQTT) | _take(remaining, _SETTINGS)
    write = _take(remaining, _WRITE)
    if remaining:
        raise _unknown_option(min(remaining))
    options_of_write = refuse_whole_job_options(SinkOptions(**write))
    if url is not None:
        return ConnectionSettings.from_url(url, **connection), options_of_write
    try:
        return ConnectionSettings.from_env(env, **connection), options_of_write
    except SettingsError as error:
        if "host" in connection:
            raise
        raise SettingsError(
            f"the option url is missing, and {error}. In SQL, INSERT INTO … WITH (url = '…') has it: Spark passes on "
            "the options of a temporary view, but not those of a table"
        ) from None


def _take(remaining: dict[str, str], known: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    taken = {}
    for lowered, (name, field) in known.items():
        if lowered in remaining:
            taken[field] = _converter(field)(name, remaining.pop(lowered))
    return taken


def _converter(field: str) -> Callable[[str, str], Any]:
    if field in _CONVERTERS:
        return _CONVERTERS[field]
    attribute = attrs.fields_dict(ConnectionSettings).get(field)
    kind = "" if attribute is None else str(attribute.type)
    for start, converter in (("bool", _boolean), ("int", _whole_number), ("float", _seconds)):
        if kind.startswith(start):
            return converter
    return _as_is


def _unknown_option(lowered: str) -> SettingsError:
    known = {"url": "url"} | {k: v[0] for table in (_WRITE, _SETTINGS) for k, v in table.items()}
    every = known | {k: v[0] for k, v in _MQTT.items()}
    if lowered in _INSTEAD:
        return _instead(lowered, lowered, SinkOptions)
    near = _near(lowered, every)
    hint = f"; did you mean {near}?" if near else "."
    names = ", ".join(sorted(known.values(), key=str.lower))
    return SettingsError(f"unknown option {lowered}{hint} Known options: {names}, and mqtt.* for the connection")
