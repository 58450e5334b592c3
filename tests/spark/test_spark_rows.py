"""Columns and rows become requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client import HlcTimestamp, InvalidArgumentError, SetItem, SettingsError
from statestore_client.spark.options import SinkOptions, WriteOptions
from statestore_client.spark.rows import Rows, arrow_rows, check_columns, requests, row_rows, version_token

pytest.importorskip("pyspark", reason="PySpark is not installed")

from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    NullType,
    StringType,
    StructField,
    StructType,
)

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "void": NullType(),
    "array": ArrayType(IntegerType()),
}


def planned(schema: str, *, kind: type[WriteOptions] = SinkOptions, **options: Any) -> WriteOptions:
    """``schema`` is ``name type, …``; Spark's own parser of that would need a Java process."""
    fields = [column.split() for column in schema.split(",")]
    return check_columns(StructType([StructField(n, TYPES[t]) for n, t in fields]), kind(**options))


def test_columns_are_found_as_spark_finds_them() -> None:
    """A column is found by its name, or in another case if that is unique, as in Spark."""
    assert planned("KEY string, Value binary").key_column == "KEY"
    assert planned("key string, KEY string, value binary").key_column == "key"


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("k string, value string", {}, "there is no column 'key' (keyColumn); the data has 'k', 'value'"),
        ("key string, v string", {}, "there is no column 'value' (valueColumn)"),
        (
            "key int, value string",
            {},
            "the column 'key' (keyColumn) must be a string or binary, not int: select cast(key as string) as key",
        ),
        (
            "key string, value array",
            {},
            "the column 'value' (valueColumn) must be a string or binary, not array<int>: "
            "select to_json(value) as value",
        ),
        ("key string, value void", {}, "the column 'value' (valueColumn) must be a string or binary, not void"),
        (
            "key string, value string, t string",
            {"ttl_column": "t"},
            "the column 't' (ttlColumn) must be a number of seconds, not string: select cast(t as double) as t",
        ),
        (
            "key string, value string, v double",
            {"version_column": "v"},
            "the column 'v' (versionColumn) must be a timestamp or a whole number, not double: "
            "select cast(v as bigint) as v",
        ),
        (
            "key string, value string, v string",
            {"version_column": "v"},
            "the column 'v' (versionColumn) must be a timestamp or a whole number, not string: "
            "select cast(v as timestamp) as v",
        ),
        (
            "key string, value string, v array",
            {"version_column": "v"},
            "the column 'v' (versionColumn) must be a timestamp or a whole number, not array<int>",
        ),
    ],
)
def test_wrong_columns_fail_at_planning(schema: str, options: dict[str, Any], message: str) -> None:
    """The error about a wrong column has its name, the option's, and the type that it takes."""
    with pytest.raises(SettingsError) as caught:
        planned(schema, **options)
    assert str(caught.value).startswith(message)


def test_wrong_columns_of_functions_are_named_in_python() -> None:
    """Errors of functions name columns as keyword arguments: ``write_rows`` has no option ``keyColumn``."""
    with pytest.raises(SettingsError, match=r"there is no column 'key' \(key_column\); the data has 'k', 'value'"):
        planned("k string, value string", kind=WriteOptions)
    with pytest.raises(SettingsError, match=r"the column 't' \(ttl_column\) must be a number of seconds"):
        planned("key string, value string, t string", kind=WriteOptions, ttl_column="t")


def test_delete_needs_no_value() -> None:
    """Deleting by key works with a frame of keys alone."""
    options = planned("key string", operation="delete")
    assert list(requests(Rows(["a"], None, None, None), options)) == [b"a"]


BAD_TTL = "the column 'ttl' must be seconds, from 0.001 to 9007199254740"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"keys": [None], "values": ["v"]}, "the column 'key' has a null"),
        ({"keys": [""], "values": ["v"]}, "the column 'key' has an empty key"),
        ({"keys": ["k"], "values": [None]}, "the column 'value' has a null"),
        ({"keys": ["k"], "values": [7]}, "the column 'value' must be a string or binary, not int"),
        ({"keys": ["k"], "values": ["v"], "ttls": [0]}, f"{BAD_TTL}, not 0"),
        ({"keys": ["k"], "values": ["v"], "ttls": [1e300]}, f"{BAD_TTL}, not 1e+300"),
        ({"keys": ["k"], "values": ["v"], "versions": [None]}, "the column 'version' has a null"),
        ({"keys": ["k"], "values": ["v"], "versions": [-1]}, "the column 'version' must be a timestamp from 1970 on"),
    ],
)
def test_unusable_rows_name_the_column(row: dict[str, Any], message: str) -> None:
    """An unusable row becomes an error in its place, and the others go on."""
    options = WriteOptions(
        ttl_column="ttl" if "ttls" in row else None, version_column="version" if "versions" in row else None
    )
    (problem,) = requests(Rows(**{"ttls": None, "versions": None, **row}), options)
    assert isinstance(problem, InvalidArgumentError)
    assert str(problem).startswith(message)


def test_unusable_rows_are_named() -> None:
    """An unusable row is named by its place in the partition, key and version, as far as there are any, never by its
    value."""
    options = WriteOptions(version_column="at")
    rows = Rows(["a", None, "k" * 100], ["1", "secret", None], None, [1, 7, None])
    problems = [
        str(p) for p in requests(rows, options, before=4096, partition=3) if isinstance(p, InvalidArgumentError)
    ]
    assert problems == [
        "the column 'key' has a null (row 4098 of partition 3, at '7')",
        "the column 'value' has a null; with nullValue=delete it deletes the key "
        f"(row 4099 of partition 3, key '{'k' * 80}')",
    ]
    (problem,) = requests(Rows([b"k"], [None], None, None), WriteOptions())
    assert str(problem).endswith(
        "has a null; with nullValue=delete it deletes the key (row 1 of its partition, key 'k')"
    )


def test_arrow_and_row_objects_give_the_same_requests() -> None:
    """Arrow batches and Row objects give the same requests for strings, binaries, expiries and timestamps."""
    pa = pytest.importorskip("pyarrow")
    moment = datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC)
    options = WriteOptions(ttl_column="ttl", version_column="version")
    batch = pa.RecordBatch.from_pydict(
        {"key": ["é", "b"], "value": [b"\xff", b""], "ttl": [1.5, None], "version": [moment, moment]},
        schema=pa.schema(
            [
                ("key", pa.string()),
                ("value", pa.binary()),
                ("ttl", pa.float64()),
                ("version", pa.timestamp("us", "UTC")),
            ]
        ),
    )
    rows = [Row(key="é", value=b"\xff", ttl=1.5, version=moment), Row(key="b", value=b"", ttl=None, version=moment)]
    token = HlcTimestamp(1357017300123, 456, "row-version")
    expected = [SetItem(b"\xc3\xa9", b"\xff", 1.5, token), SetItem(b"b", b"", None, token)]
    assert list(requests(arrow_rows(batch, options), options)) == expected
    assert list(requests(row_rows(rows, options), options)) == expected


def test_rows_without_the_column_say_so() -> None:
    """A partition writer, which learns the columns from its first rows, names a column that they lack."""
    with pytest.raises(InvalidArgumentError, match="the rows have no column 'value'"):
        row_rows([Row(key="a")], WriteOptions())


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_whole_numbers_keep_their_order(first: int, second: int) -> None:
    """Tokens of whole numbers are ordered as the numbers, lie in the past, and fit into every SDK's counter."""
    one, other = version_token("v", first), version_token("v", second)
    assert (one < other) == (first < second)
    assert one.wall_ms < 1_700_000_000_000
    assert one.counter < 2**31


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - hypothesis wants bounds without a zone
    st.timedeltas(timedelta(microseconds=1), timedelta(days=1)),
)
def test_timestamps_keep_their_order(moment: datetime, later: timedelta) -> None:
    """Tokens of timestamps differ by the microsecond, and the time zone makes no difference."""
    token = version_token("v", moment)
    assert token < version_token("v", moment + later)
    assert token == version_token("v", moment.astimezone(timezone(timedelta(hours=5))))
