"""Columns and rows: checked at planning, turned into requests in the tasks.

A row's version becomes a fencing token: the state store then refuses every write of the key that carries an older one
(state store protocol, "Fencing Token Algorithm"), atomically and whoever sends it. Versions map to tokens in order:

* a timestamp, in microseconds since 1970: the milliseconds are the wall clock, the rest is the counter. The state store
  refuses one that lies more than a minute in the future, so a wrong clock cannot seal a key for years;
* a whole number from 0 on: its upper bits are the wall clock, its lower 31 the counter (more, the .NET SDK cannot
  read). Such tokens lie in the past for every 63-bit number, and before any timestamp.

The store forgets a key's token together with the key. So a key is deleted under a version by a SET of a
tombstone, not by a DEL; the tombstone carries the version and expires later: docs/decisions/spark-into-the-store.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from raft_client._common.column_types import conversion
from statestore_client import HlcTimestamp, SetItem
from statestore_client.core.arguments import MAX_EXPIRY_S
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.spark.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: What ``set_many``, ``delete_many`` and ``vdelete_many`` take.
Request: TypeAlias = "SetItem | tuple[bytes, bytes] | bytes"

_BYTES: Final = ("string", "binary", "char", "varchar")
_WHOLE: Final = ("byte", "short", "integer", "long")
#: The types that a column may have, what they are called, and the one to convert others to.
_TYPES: Final = {
    "key_column": (_BYTES, "a string or binary", "string"),
    "value_column": (_BYTES, "a string or binary", "string"),
    "ttl_column": ((*_WHOLE, "float", "double", "decimal"), "a number of seconds", "double"),
    "version_column": ((*_WHOLE, "timestamp"), "a timestamp or a whole number", "timestamp"),
    "index_column": (_WHOLE, "a whole number", "bigint"),
}
_TO_BYTES: Final[Mapping[type, Callable[[Any], bytes]]] = {str: str.encode, bytearray: bytes}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTER_BITS: Final = 31
_NODE: Final = "row-version"
#: The version of the greatest whole number; whatever a lock gives, or a timestamp is after 1970-02-19, is newer.
GREATEST_WHOLE: Final = HlcTimestamp((2**63 - 1) >> _COUNTER_BITS, 2**_COUNTER_BITS - 1, _NODE)
#: The value of a deleted key, as long as its version has to be remembered.
_TOMBSTONE: Final = b""
#: So much of a cell is shown (characters).
_SHOWN: Final = 80


# -- at planning -------------------------------------------------------------------------------------------------------


def check_frame(df: object, function: str) -> None:
    """Raises :class:`SettingsError` for anything but a DataFrame of Spark."""
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame):
        raise SettingsError(
            f"{function} takes a DataFrame of Spark, not {type(df).__name__}: spark.createDataFrame makes one of rows "
            "and of a table of pandas; in foreachPartition use partition_writer"
        )


def check_columns(schema: StructType, options: WriteOptions) -> WriteOptions:
    """The options with the columns' exact names. Raises :class:`SettingsError` for a missing or wrongly typed one."""
    wanted = {
        "key_column": options.key_column,
        "value_column": options.value_name,
        "ttl_column": options.ttl_column,
        "version_column": options.version_column,
    }
    found: dict[str, Any] = {}
    for field, name in wanted.items():
        if name is not None:
            found[field] = check_column(schema, name, field, options.called(field))
    return attrs.evolve(options, **found)


def check_column(schema: StructType, name: str, field: str, option: str) -> str:
    """The exact name of a column with a type that the option takes, which ``field`` names as Python spells it."""
    column = find_column(schema, name, option)
    types, takes, convert_to = _TYPES[field]
    data_type = schema[column].dataType
    if data_type.typeName().split("(")[0].split(" ")[0] not in types:
        kind = data_type.simpleString()
        remedy = conversion(column, kind, convert_to)
        raise SettingsError(f"the column {column!r} ({option}) must be {takes}, not {kind[:100]}{remedy}")
    return column


def find_column(schema: StructType, name: str, option: str) -> str:
    """The exact name of a column, found as Spark does: by its name, or by its name in another case."""
    if name in schema.names:
        return name
    near = [n for n in schema.names if n.lower() == name.lower()]
    if len(near) == 1:
        return near[0]
    raise SettingsError(f"there is no column {name!r} ({option}); the data has {', '.join(map(repr, schema.names))}")


# -- in the tasks ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Rows:
    """Some rows, by column. Columns that the operation does not need are None."""

    keys: Sequence[Any]
    values: Sequence[Any] | None
    ttls: Sequence[Any] | None
    versions: Sequence[Any] | None


def arrow_rows(batch: pa.RecordBatch, options: WriteOptions) -> Rows:
    """The rows of an Arrow batch. Texts come as the UTF-8 that they are in there."""
    import pyarrow as pa

    def column(name: str | None) -> list[Any] | None:
        if name is None:
            return None
        array = batch.column(name)
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
            return [None if us is None else _Microseconds(us) for us in array.to_pylist()]
        if pa.types.is_string(array.type):
            array = array.cast(pa.binary())
        values: list[Any] = array.to_pylist()
        return values

    keys = column(options.key_column)
    assert keys is not None  # noqa: S101 - the key column always has a name
    return Rows(keys, column(options.value_name), column(options.ttl_column), column(options.version_column))


def row_rows(rows: Sequence[Any], options: WriteOptions) -> Rows:
    """Spark's Row objects. Raises :class:`InvalidArgumentError` when a column is missing."""

    def column(name: str | None) -> list[Any] | None:
        if name is None:
            return None
        try:
            return [row[name] for row in rows]
        except (ValueError, KeyError, IndexError, TypeError):
            raise InvalidArgumentError(f"the rows have no column {name!r}") from None

    keys = column(options.key_column)
    assert keys is not None  # noqa: S101 - the key column always has a name
    return Rows(keys, column(options.value_name), column(options.ttl_column), column(options.version_column))


def requests(
    rows: Rows, options: WriteOptions, *, before: int = 0, partition: int | None = None
) -> Iterator[Request | InvalidArgumentError]:
    """A request for each row, or what is wrong with the row; the count is of the rows before these in the partition."""
    pairs = _plain_pairs(rows, options)
    return _row_by_row(rows, options, before + 1, partition) if pairs is None else iter(pairs)


def _plain_pairs(rows: Rows, options: WriteOptions) -> list[Request] | None:
    """The requests of rows that are nothing but good keys and values, None for others; looks at whole columns."""
    if rows.values is None or options.ttl_column is not None or options.version_column is not None:
        return None
    keys, values = _plain_bytes(rows.keys), _plain_bytes(rows.values)
    if keys is None or values is None or not all(keys):
        return None
    return list(zip(keys, values, strict=True))


def _plain_bytes(column: Sequence[Any]) -> Sequence[bytes] | None:
    kinds = set(map(type, column))
    if kinds == {bytes}:
        return column
    for kind, to_bytes in _TO_BYTES.items():
        if kinds == {kind}:
            return list(map(to_bytes, column))
    return None


def _row_by_row(
    rows: Rows, options: WriteOptions, first: int, partition: int | None
) -> Iterator[Request | InvalidArgumentError]:
    columns: Iterable[tuple[Any, Any, Any, Any]] = zip(
        rows.keys, *(c or [None] * len(rows.keys) for c in (rows.values, rows.ttls, rows.versions)), strict=True
    )
    for number, (key, value, ttl, version) in enumerate(columns, first):
        try:
            yield _request(options, key, value, ttl, version)
        except InvalidArgumentError as error:
            yield InvalidArgumentError(f"{error} ({_which(number, partition, options, key, version)})")


def _which(number: int, partition: int | None, options: WriteOptions, key: Any, version: Any) -> str:
    """Text that identifies a row for people. It leaves out the value, which is not for logs."""
    place = "its partition" if partition is None else f"partition {partition}"
    known = {options.key_column: key, options.version_column: version}
    shown = (
        f"{name} {_text(cell)[:_SHOWN]!r}" for name, cell in known.items() if name is not None and cell is not None
    )
    return ", ".join((f"row {number} of {place}", *shown))


def _text(cell: Any) -> str:
    """Arrow's texts come as bytes."""
    return bytes(cell).decode("utf-8", "backslashreplace") if isinstance(cell, (bytes, bytearray)) else str(cell)


def _request(options: WriteOptions, key: Any, value: Any, ttl: Any, version: Any) -> Request:
    key_bytes = _bytes(options.key_column, key)
    if not key_bytes:
        raise InvalidArgumentError(f"the column {options.key_column!r} has an empty key")
    name = options.value_name
    if name is None or (value is None and options.null_value == "delete"):
        stays_s = options.tombstone_s
        return key_bytes if stays_s is None else SetItem(key_bytes, _TOMBSTONE, stays_s, _token(options, version))
    if value is None and options.operation == "set":
        raise InvalidArgumentError(f"the column {name!r} has a null; with nullValue=delete it deletes the key")
    pair = key_bytes, _bytes(name, value)
    if pair[1] == _TOMBSTONE and options.tombstone_s is not None:
        raise InvalidArgumentError(f"the column {name!r} has an empty value, which would pass for a deleted key")
    expiry = None if ttl is None else _expiry_s(options.ttl_column, ttl)
    token = _token(options, version)
    return pair if expiry is None and token is None else SetItem(*pair, expiry=expiry, fencing_token=token)


def _token(options: WriteOptions, version: Any) -> HlcTimestamp | None:
    return None if options.version_column is None else version_token(options.version_column, version)


def _bytes(column: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray):
        return bytes(value)
    if value is None:
        raise InvalidArgumentError(f"the column {column!r} has a null")
    kind = "struct" if isinstance(value, (dict, list, tuple)) else type(value).__name__
    remedy = conversion(column, kind, "string")
    raise InvalidArgumentError(f"the column {column!r} must be a string or binary, not {type(value).__name__}{remedy}")


def _expiry_s(column: str | None, ttl: Any) -> float:
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float, Decimal)) or not 0.001 <= ttl <= MAX_EXPIRY_S:
        raise InvalidArgumentError(f"the column {column!r} must be seconds, from 0.001 to {MAX_EXPIRY_S}, not {ttl!r}")
    return float(ttl)


class _Microseconds(int):
    """A timestamp as Arrow stores it, told from a plain number."""


def version_token(column: str, version: Any) -> HlcTimestamp:
    """The fencing token that stands for a row's version; see the head of this module."""
    if isinstance(version, datetime):
        # Spark's rows have naive timestamps in the session's zone, which astimezone() takes to be this process's.
        version = _Microseconds((version.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1))
    if version is None:
        raise InvalidArgumentError(f"the column {column!r} has a null; a version orders the rows of a key")
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        raise InvalidArgumentError(
            f"the column {column!r} must be a timestamp from 1970 on or a whole number from 0 on, not {version!r}"
        )
    if isinstance(version, _Microseconds):
        return HlcTimestamp(version // 1000, version % 1000, _NODE)
    return HlcTimestamp(version >> _COUNTER_BITS, version & (2**_COUNTER_BITS - 1), _NODE)


def version_text(token: HlcTimestamp) -> str:
    """The version that became this token: a whole number, or a timestamp."""
    if token <= GREATEST_WHOLE:
        return str(token.wall_ms << _COUNTER_BITS | token.counter)
    try:
        return str(_EPOCH + timedelta(milliseconds=token.wall_ms, microseconds=token.counter))
    except OverflowError:  # Spark's years have six digits
        return f"{token.wall_ms // 1000} s after 1970"
