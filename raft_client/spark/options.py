"""The options of reads, streams and writes: checked once, at planning; frozen from then on. Spark has them as texts."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from raft_client._common.column_types import conversion
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import InvalidArgumentError, SettingsError
from raft_client.settings import RaftSettings
from raft_client.wire.frames import MAX_UINT
from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# -- options that are not known ----------------------------------------------------------------------------------------
# People come from the other kind of read, and from Spark's source for Kafka.


#: A name in lower case -> what is meant; of several, the one that this kind of read has.
_INSTEAD: Final[Mapping[str, tuple[str, ...]]] = {
    "url": ("seeds",),
    "urls": ("seeds",),
    "peers": ("seeds",),
    "kafka.bootstrap.servers": ("seeds",),
    "after": ("startingIndex",),
    "startingindex": ("after",),
    "startingoffsets": ("startingIndex", "after"),
    "startingoffset": ("startingIndex", "after"),
    "startingtimestamp": ("startingTime",),
    "startingoffsetsbytimestamp": ("startingTime",),
    "until": ("endingIndex",),
    "endingindex": ("until",),
    "endingoffsets": ("endingIndex", "until"),
    "endingoffset": ("endingIndex", "until"),
    "partitions": ("minPartitions",),
    "minpartitions": ("partitions",),
    "failondataloss": ("snapshot",),
}
_NO_TOPICS: Final = "a log has no topics, leave it out"
_NO_GROUPS: Final = "there are no consumer groups: each query reads the whole log, its checkpoint says how far it is"
#: A name in lower case -> why there is nothing like it.
_NOTHING: Final[Mapping[str, str]] = {
    "subscribe": _NO_TOPICS,
    "subscribepattern": _NO_TOPICS,
    "assign": _NO_TOPICS,
    "topic": _NO_TOPICS,
    "groupidprefix": _NO_GROUPS,
    "kafka.group.id": _NO_GROUPS,
    "path": "a log has no paths or tables, and seeds says where it is",
    "includeheaders": "an entry has no headers",
    "minoffsetspertrigger": "how often there is a micro-batch is up to the trigger",
    "maxtriggerdelay": "how often there is a micro-batch is up to the trigger",
}


def unknown_options(lowered: Iterable[str], known: Mapping[str, str]) -> SettingsError:
    """The error for options, all in one; ``known`` has those that exist, by their names in lower case."""
    sentences = [f"unknown option {name}{_hint(name, known)}" for name in sorted(lowered)]
    names = ", ".join(sorted(set(known.values()), key=str.lower))
    return SettingsError(f"{' '.join(sentences)} Known options: {names}")


def _hint(lowered: str, known: Mapping[str, str]) -> str:
    for name in _INSTEAD.get(lowered, ()):
        if name.lower() in known:
            return f"; did you mean {name}?"
    if lowered in _NOTHING:
        return f": {_NOTHING[lowered]}."
    if lowered.startswith("kafka."):
        return ": that is a setting of Kafka's client."
    near = difflib.get_close_matches(lowered, known, n=1)
    return f"; did you mean {known[near[0]]}?" if near else "."


# -- reading -----------------------------------------------------------------------------------------------------------


#: More tasks than any cluster of Spark runs for one log, which a single peer serves.
MAX_PARTITIONS: Final = 10_000
_START: Final = Position(0)


Options = TypeVar("Options", bound=attrs.AttrsInstance)


def whole_number(low: int, high: int) -> Any:
    """A validator for fields of options; None passes where it is the default."""

    def check(_instance: object, attribute: attrs.Attribute[int | None], value: int | None) -> None:
        if value is None and attribute.default is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise SettingsError(
                f"{option_name(attribute.name)} must be a whole number from {low} to {high}, not {value!r}"
            )

    return check


def to_policy(value: SnapshotPolicy | str) -> SnapshotPolicy:
    """Raises SettingsError for another word."""
    try:
        return SnapshotPolicy(value)
    except ValueError:
        raise SettingsError(f"snapshot must be deliver, refuse or skip, not {value!r}") from None


def _to_position(value: Position | int | str) -> Position:
    try:
        return Position.parse(value) if isinstance(value, str) else Position.of(value)
    except InvalidArgumentError:
        raise SettingsError(f"after must be a log index or INDEX@TERM@ID, not {value!r}") from None


@attrs.frozen(kw_only=True)
class ReadOptions:
    """Which entries to read; where they are is in :class:`~raft_client.RaftSettings`. Raises :class:`SettingsError`."""

    #: The log index before the first entry, 0 being the start of the log; or a position, whose term is checked.
    after: Position = attrs.field(default=_START, converter=_to_position)
    #: The log index of the last entry; None: what the leader has applied when the read is planned.
    until: int | None = attrs.field(default=None, validator=whole_number(0, MAX_UINT))
    #: How many tasks read; None: one for every 100,000 entries, eight at most. Never more than there are entries.
    partitions: int | None = attrs.field(default=None, validator=whole_number(1, MAX_PARTITIONS))
    #: When the log was compacted beyond ``after``: ``refuse`` ends with :class:`~raft_client.HistoryOutrunError`,
    #: ``skip`` begins after the snapshot, ``deliver`` has the snapshot as the row before the entries.
    snapshot: SnapshotPolicy = attrs.field(default=SnapshotPolicy.REFUSE, converter=to_policy)
    #: Whether the markers of pipelines that write into the log are rows, too.
    markers: bool = False

    def __attrs_post_init__(self) -> None:
        if self.until is not None and self.until < self.after.index:
            raise SettingsError(f"until must not be before after: {self.until} < {self.after.index}")


def connection(settings: RaftSettings | str | Iterable[str]) -> RaftSettings:
    """Settings, given as such or as URLs of peers."""
    return settings if isinstance(settings, RaftSettings) else RaftSettings(seeds=settings)


# -- Spark's texts -----------------------------------------------------------------------------------------------------


def option_name(field: str) -> str:
    """``request_timeout`` -> ``requestTimeout``."""
    head, *rest = field.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _table(cls: type[attrs.AttrsInstance]) -> dict[str, attrs.Attribute[Any]]:
    """Lower-cased option -> field. Spark hands options over in lower case. A field may have a second name."""
    fields = attrs.fields(cls)
    aliases = {a.metadata["alias"].lower(): a for a in fields if "alias" in a.metadata}
    return {option_name(a.name).lower(): a for a in fields} | aliases


#: Settings of what a read does not do: it waits for nothing, and follows nothing.
OF_NO_USE: Final = frozenset({"heartbeat", "broadcast_timeout", "progress_interval", "watch_bytes"})
_SETTINGS: Final[Mapping[str, attrs.Attribute[Any]]] = {
    name: field for name, field in _table(RaftSettings).items() if field.name not in OF_NO_USE
}


def parse_options(
    options: Mapping[str, str], env: Mapping[str, str] | None = None, *, kind: type[Options]
) -> tuple[RaftSettings, Options]:
    """The settings and the options of one ``kind`` in Spark's options, whose names' case does not matter.

    Settings that are not given are taken from the ``ZMQRAFT_*`` environment variables of the driver. Raises
    :class:`SettingsError` for an unknown or unusable option; the message names it and what it takes.
    """
    table = _table(kind)
    remaining = {name.lower(): text for name, text in options.items()}
    settings, own = _take(remaining, _SETTINGS), _take(remaining, table)
    if remaining:
        known = {name: option_name(a.name) for own in (_SETTINGS, table) for name, a in own.items()}
        raise unknown_options(remaining, known)
    try:
        return RaftSettings.from_env(env, **settings), kind(**own)
    except SettingsError as error:
        if "seeds" in settings or "ZMQRAFT_SEEDS" not in error.message:
            raise
        raise SettingsError(f"the option seeds is missing, and {error}") from None


def refuse_useless(options: Mapping[str, str], kinds: Sequence[type[attrs.AttrsInstance]]) -> None:
    """Raises :class:`SettingsError` when none of the ``kinds`` of read can have these options.

    Of the errors it is that of the kind which knows most of the names; of those that know as many, all.
    """
    errors: dict[str, int] = {}
    for kind in kinds:
        try:
            parse_options(options, kind=kind)
        except SettingsError as error:
            errors[error.message] = len({*map(str.lower, options)} & {*_SETTINGS, *_table(kind)})
        else:
            return
    most = max(errors.values())
    raise SettingsError("\n".join(message for message, known in errors.items() if known == most))


def to_options(settings: RaftSettings, read: ReadOptions) -> dict[str, str]:
    """What :func:`parse_options` reads back. Options that are None are left out."""
    values = attrs.asdict(settings, recurse=False) | attrs.asdict(read, recurse=False)
    values["seeds"] = ",".join(settings.seeds)
    values["curve_peer_keys"] = ",".join(f"{url}={key}" for url, key in settings.curve_peer_keys) or None
    used = {name: value for name, value in values.items() if name not in OF_NO_USE and value is not None}
    return {option_name(name): str(value) for name, value in used.items()}


def _take(remaining: dict[str, str], known: Mapping[str, attrs.Attribute[Any]]) -> dict[str, Any]:
    given = [name for name in list(remaining) if name in known]
    taken = {known[name].name: _from_text(known[name], name, remaining.pop(name)) for name in given}
    if len(taken) < len(given):
        twice = next(known[name] for name in given if "alias" in known[name].metadata)
        raise SettingsError(f"{option_name(twice.name)} and {twice.metadata['alias']} are the same: give one of them")
    return taken


def _from_text(field: attrs.Attribute[Any], lowered: str, text: str) -> Any:
    kind = str(field.type).partition(" ")[0]
    names = (option_name(field.name), field.metadata.get("alias", ""))
    called = next(name for name in names if name.lower() == lowered)
    if kind == "bool":
        return _to_flag(called, text)
    try:
        return {"int": int, "float": float}.get(kind, str)(text)
    except ValueError:
        what = "a whole number" if kind == "int" else "a number of seconds"
        raise SettingsError(f"the option {called} must be {what}, not {text!r}") from None


def _to_flag(called: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SettingsError(f"the option {called} must be true or false, not {text!r}")
    return text.lower() == "true"


# -- streams -----------------------------------------------------------------------------------------------------------


EARLIEST: Final = "earliest"
LATEST: Final = "latest"


def _to_start(value: str | int) -> str | int:
    text = str(value).strip().lower()
    if text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_UINT:
        return int(text)
    raise SettingsError(f"startingIndex must be earliest, latest or the index of an entry, from 1, not {value!r}")


def _to_seconds(value: int | str | None) -> int | None:
    if value is None:
        return None
    text = str(value).strip()
    try:
        if text.isascii() and text.isdecimal():
            found = int(text)
        else:
            moment = datetime.fromisoformat(text)
            found = -1 if moment.tzinfo is None else math.ceil(moment.timestamp())
    except ValueError:
        found = -1
    if not 0 <= found < 2**32:
        raise SettingsError(
            f"startingTime must be whole seconds since 1970, or as 2026-11-25T08:00:00+01:00, not {value!r}"
        )
    return found


@attrs.frozen(kw_only=True)
class StreamOptions:
    """Which entries a stream has. Raises :class:`SettingsError`.

    Where a stream starts is asked when its query starts for the first time. From then on, its checkpoint says it.
    """

    #: The first entry: ``earliest`` that the log has, ``latest`` for what comes after now, or its index.
    starting_index: str | int = attrs.field(default=EARLIEST, converter=_to_start)
    #: Instead: the first entry whose request id was made then or later. Seconds since 1970, or ISO 8601 with a zone.
    starting_time: str | int | None = attrs.field(default=None, converter=_to_seconds)
    #: The log index of the last entry that the stream will ever have.
    ending_index: int | None = attrs.field(default=None, validator=whole_number(1, MAX_UINT))
    #: How many entries a micro-batch has at most.
    max_entries_per_trigger: int | None = attrs.field(
        default=None, validator=whole_number(1, MAX_UINT), metadata={"alias": "maxOffsetsPerTrigger"}
    )
    #: How many bytes the entries of a micro-batch have at most, unless one has more. The driver reads them, too.
    max_bytes_per_trigger: int | None = attrs.field(default=None, validator=whole_number(1, MAX_UINT))
    #: Whether the stream ends with HistoryOutrunError when entries were compacted before it has read them.
    fail_on_data_loss: bool = True
    #: What it has instead of them: ``refuse`` leaves that to failOnDataLoss, ``skip`` nothing, ``deliver`` the
    #: snapshot, as a row before the entries.
    snapshot: SnapshotPolicy = attrs.field(default=SnapshotPolicy.REFUSE, converter=to_policy)
    #: How many tasks read a micro-batch, if it has as many entries.
    min_partitions: int | None = attrs.field(default=None, validator=whole_number(1, MAX_PARTITIONS))

    #: Whether the markers of pipelines that write into the log are rows, too.
    markers: bool = False

    @property
    def first_index(self) -> int | None:
        """The index of the first entry, where one was given."""
        return self.starting_index if isinstance(self.starting_index, int) else None

    @property
    def policy(self) -> SnapshotPolicy:
        """What to do when entries were compacted before they were read."""
        if self.snapshot is SnapshotPolicy.REFUSE and not self.fail_on_data_loss:
            return SnapshotPolicy.SKIP
        return self.snapshot

    def __attrs_post_init__(self) -> None:
        if self.starting_time is not None and self.starting_index != EARLIEST:
            raise SettingsError("startingIndex and startingTime are two ways to say it: give one of them")
        if self.ending_index is not None and (self.first_index or 1) > self.ending_index + 1:
            raise SettingsError(
                f"endingIndex must not be before startingIndex: {self.ending_index} < {self.starting_index}"
            )


# -- writing -----------------------------------------------------------------------------------------------------------


#: What Spark adds to the options of a stream.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "path"})
_TEXTS: Final = ("string", "binary")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")


def _not_empty(_instance: object, attribute: Any, value: str | None) -> None:
    if value is not None and not value.strip():
        raise SettingsError(f"{option_name(attribute.name)} must not be empty")


@attrs.frozen(kw_only=True)
class WriteOptions:
    """What is appended, and under which ids. Raises :class:`SettingsError`."""

    #: The name of this pipeline, the same for ever; of a batch write, the name of this one write.
    pipeline_id: str | None = attrs.field(default=None, validator=_not_empty)
    #: The column with what is appended: string or binary.
    data_column: str = attrs.field(default="data", validator=_not_empty)
    #: The column with the place of the row in its source, a whole number, different for each row.
    index_column: str | None = attrs.field(default=None, validator=_not_empty)
    #: The column with the identity of the row: string, binary or a whole number.
    id_column: str | None = attrs.field(default=None, validator=_not_empty)
    #: Ids are made of the data: equal rows of a batch are appended once.
    content_ids: bool = False
    #: The batch of the checkpoint with which the pipeline begins.
    first_batch: int = attrs.field(default=0, validator=whole_number(0, MAX_UINT))

    def __attrs_post_init__(self) -> None:
        given = [self.index_column is not None, self.id_column is not None, self.content_ids]
        if sum(given) > 1:
            raise SettingsError(
                "indexColumn, idColumn and contentIds are three ways to tell rows apart: give one of them"
            )
        if not any(given):
            raise SettingsError(
                "a row that is written again must get the same id: give one of indexColumn (of a stream of zmqraft: "
                "index), idColumn, or contentIds=true, which appends equal rows of a batch once"
            )


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """Without those that Spark adds."""
    return {name: text for name, text in options.items() if name.lower() not in _OF_SPARK}


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises SettingsError when a column is missing, or has a type that is not taken."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    wanted: list[tuple[str, str | None, tuple[str, ...], str]] = [
        ("dataColumn", options.data_column, _TEXTS, "string"),
        ("indexColumn", options.index_column, _WHOLE, "bigint"),
        ("idColumn", options.id_column, (*_TEXTS, *_WHOLE), "string"),
    ]
    for option, column, allowed, to in wanted:
        if column is not None:
            _check_column(types, option, column, allowed, to)


def _check_column(types: Mapping[str, str], option: str, column: str, allowed: tuple[str, ...], to: str) -> None:
    if column not in types:
        raise SettingsError(f"{option}: there is no column {column!r}; there are {', '.join(types)}")
    if types[column] not in allowed:
        remedy = conversion(column, types[column], to)
        raise SettingsError(
            f"{option}: the column {column!r} is {types[column]}; it must be {' or '.join(allowed)}{remedy}"
        )
