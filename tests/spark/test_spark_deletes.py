"""Rows that delete: what is sent, what is left, and what a task that runs twice does to it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from statestore_client import (
    ConnectionSettings,
    FencingTokenRequiredError,
    HlcTimestamp,
    InvalidArgumentError,
    SettingsError,
    StateStoreClient,
)
from statestore_client.server import EmbeddedServer
from statestore_client.spark import lookup, partition_writer, write_rows
from statestore_client.spark.options import WriteOptions, parse_options
from statestore_client.spark.pool import ClientPool, PoolKey
from statestore_client.spark.report import WriteReport
from statestore_client.spark.rows import Rows
from statestore_client.spark.writing import Delivery, PartitionWrite
from statestore_client.wire.commands import Del, Set

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from recording_server import RecordingServer

OLD, NEW = HlcTimestamp(1000, 0, "lock"), HlcTimestamp(2000, 0, "lock")
VERSIONED: dict[str, Any] = {"null_value": "delete", "version_column": "v"}


class Writer:
    """Writes columns with one pool, and reports."""

    def __init__(self, server: RecordingServer, pool: ClientPool) -> None:
        self._key = PoolKey(ConnectionSettings.from_url(server.url))
        self._pool = pool

    def __call__(self, keys: list[Any], values: list[Any] | None, versions: Any = None, **options: Any) -> WriteReport:
        write = PartitionWrite(Delivery(self._key, retry_timeout_s=20.0, pool=self._pool), WriteOptions(**options))
        write.write(Rows(keys, values, None, versions))
        return write.report


@pytest.fixture
def write(server: RecordingServer) -> Iterator[Writer]:
    pool = ClientPool()
    yield Writer(server, pool)
    pool.clear()


def values(store: StateStoreClient, *keys: str) -> list[bytes | None]:
    return [None if item is None else item.value for item in store.get_many(keys)]


# -- without versions --------------------------------------------------------------------------------------------------


def test_a_null_value_deletes_its_key(write: Writer, store: StateStoreClient) -> None:
    """A row with a null value deletes its key if asked for, and an empty value is a value; a missing key is not
    applied."""
    store.set_many([("a", "1"), ("b", "2")])
    report = write(["a", "b", "c", "d"], [None, "new", None, ""], null_value="delete")
    assert report == WriteReport(written=3, not_applied=1)
    assert values(store, "a", "b", "c", "d") == [None, b"new", None, b""]


def test_a_null_value_is_an_error_unless_told(write: Writer) -> None:
    """Without the option a null value is an error."""
    assert isinstance(write(["a"], [None]).error, InvalidArgumentError)


@pytest.mark.parametrize(("last", "left"), [(None, None), ("2", b"2")])
def test_the_last_row_of_a_key_decides(write: Writer, store: StateStoreClient, last: Any, left: bytes | None) -> None:
    """The last row of a key decides if it is set or deleted, within a batch and from one to the next."""
    keys = ["first", "k", *(f"x{i}" for i in range(4200)), "k"]
    report = write(keys, ["0", "1" if last is None else None, *(["x"] * 4200), last], null_value="delete")
    assert report.rows == len(keys)
    assert values(store, "k") == [left]


def test_deletes_carry_the_fencing_token(write: Writer, store: StateStoreClient) -> None:
    """A delete carries the fencing token, and without it a protected key is refused as a row's error."""
    store.set_many([("a", "1"), ("b", "1")], fencing_token=NEW)
    assert write(["a"], [None], null_value="delete", fencing_token=NEW).written == 1
    assert isinstance(
        write(["b"], [None], null_value="delete", error_mode="continue").rejection, FencingTokenRequiredError
    )
    assert values(store, "a", "b") == [None, b"1"]


# -- with versions -----------------------------------------------------------------------------------------------------


def test_a_deleted_key_remembers_its_version(write: Writer, server: RecordingServer, store: StateStoreClient) -> None:
    """A key deleted with a version stays as an empty value under it, so that older rows are refused and newer ones are
    not."""
    assert write(["a"], ["one"], [1], **VERSIONED) == WriteReport(written=1)
    assert write(["a", "never"], [None, None], [3, 3], **VERSIONED) == WriteReport(written=2)
    assert values(store, "a", "never") == [b"", b""]
    assert write(["a", "never"], ["two", "two"], [2, 2], **VERSIONED) == WriteReport(not_applied=2)
    assert values(store, "a", "never") == [b"", b""]
    assert write(["a"], ["four"], [4], **VERSIONED) == WriteReport(written=1)
    assert write(["a"], [None], [3], **VERSIONED) == WriteReport(not_applied=1)
    assert values(store, "a") == [b"four"]
    assert not [command for _, command in server.requests if isinstance(command, Del)]


def test_a_tombstone_expires(write: Writer, server: RecordingServer, store: StateStoreClient) -> None:
    """A tombstone expires after a day unless told; with it the version is forgotten, and only then an old row comes
    back."""
    write(["a"], [None], [3], **VERSIONED)
    write(["b"], [None], [3], tombstone_ttl=1.0, **VERSIONED)
    expiries = {c.key: c.expiry_ms for _, c in server.requests if isinstance(c, Set)}
    assert expiries == {b"a": 86_400_000, b"b": 1000}
    with store.watch("b", initial=True) as events:
        while (event := events.get(10.0)) is not None and event.kind != "delete":
            pass
    assert write(["a", "b"], ["old", "old"], [2, 2], **VERSIONED) == WriteReport(written=1, not_applied=1)
    assert values(store, "a", "b") == [b"", b"old"]


def test_a_newer_row_of_a_deleted_key_does_not_expire(write: Writer, server: RecordingServer) -> None:
    """A newer row of a deleted key does not take over the tombstone's expiry."""
    write(["a"], [None], [3], **VERSIONED)
    write(["a"], ["new"], [4], **VERSIONED)
    assert [c.expiry_ms for _, c in server.requests if isinstance(c, Set)] == [86_400_000, None]


def test_the_newest_row_of_a_partition_decides(write: Writer, store: StateStoreClient) -> None:
    """With versions the newest row of a key in the partition decides, in any order, and a delete is a row like any
    other."""
    report = write(["x", "a", "a", "a", "b", "b"], ["x", "1", None, "2", None, "9"], [1, 1, 3, 2, 8, 9], **VERSIONED)
    assert report.rows == 6
    assert values(store, "a", "b") == [b"", b"9"]


def test_an_empty_value_would_pass_for_a_deleted_key(write: Writer) -> None:
    """Where tombstones are written an empty value is a row's error, because it would pass for a deleted key."""
    report = write(["a", "b"], ["", "1"], [1, 1], error_mode="continue", **VERSIONED)
    assert (report.written, report.rejected) == (1, 1)
    assert str(report.rejection).startswith("the column 'value' has an empty value, which would pass for a deleted key")


def test_operation_delete_takes_versions(write: Writer, store: StateStoreClient) -> None:
    """operation=delete takes keys, each with the version of its delete."""
    write(["a", "b"], ["1", "5"], [1, 5], version_column="v")
    report = write(["a", "b"], None, [3, 3], operation="delete", version_column="v")
    assert report == WriteReport(written=1, not_applied=1)
    assert values(store, "a", "b") == [b"", b"5"]


def test_tombstones_keep_out_older_fencing_tokens(write: Writer, store: StateStoreClient) -> None:
    """A tombstone keeps out older fencing tokens of a lock, where a plain delete forgets the token."""
    late: dict[str, Any] = {"fencing_token": OLD, "error_mode": "continue"}
    write(["a"], [None], null_value="delete", fencing_token=NEW)
    assert write(["a"], ["late"], **late).written == 1
    write(["b"], [None], null_value="delete", fencing_token=NEW, tombstone_ttl=60.0)
    assert write(["b"], ["late"], **late).written == 0
    assert values(store, "a", "b") == [b"late", b""]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nullValue": "ignore"}, "nullValue must be error or delete, not 'ignore'"),
        ({"nullValue": "delete", "operation": "delete"}, "nullValue=delete is for operation=set, not for delete"),
        ({"tombstoneTtl": "60"}, "tombstoneTtl is for deletes: nullValue=delete or operation=delete"),
        ({"tombstoneTtl": "60", "nullValue": "delete"}, "tombstoneTtl needs versionColumn or fencingToken"),
        ({"tombstoneTtl": "0", "nullValue": "delete", "versionColumn": "v"}, "tombstoneTtl must be seconds from 1 to"),
        ({"tombstoneTtl": "nan", "nullValue": "delete", "versionColumn": "v"}, "tombstoneTtl must be seconds from 1"),
        ({"tombstoneTtl": "soon"}, "the option tombstoneTtl must be a number of seconds, not 'soon'"),
        ({"gcFreeze": "perhaps"}, "the option gcFreeze must be true or false, not 'perhaps'"),
    ],
)
def test_unusable_options_are_named(options: dict[str, str], message: str) -> None:
    """Unusable options for deletes are refused at planning."""
    with pytest.raises(SettingsError, match=message):
        parse_options({"url": "mqtt://broker", **options}, env={})


# -- tasks that run twice, in Spark ------------------------------------------------------------------------------------


def changes(spark: SparkSession, rows: list[tuple[str, str | None, int]]) -> DataFrame:
    """In one partition and in this order."""
    return spark.createDataFrame(rows, "key string, value string, v long").coalesce(1)


@pytest.mark.spark
@pytest.mark.parametrize("versioned", [True, False])
def test_a_repeated_task_leaves_what_one_attempt_leaves(spark: SparkSession, versioned: bool) -> None:
    """A repeated task leaves what a single attempt leaves, with versions and without."""
    rows = [("gone", None, 2), ("back", None, 2), ("back", "2", 3), ("new", "1", 1), ("new", None, 2), ("end", "1", 1)]
    options = {"nullValue": "delete", "retryTimeout": "0", "requestTimeout": "2"} | (
        {"versionColumn": "v"} if versioned else {}
    )
    with EmbeddedServer(faults=True) as server, StateStoreClient(server.url) as store:
        store.set_many([("gone", "1"), ("back", "1")], fencing_token=HlcTimestamp(0, 1, "v") if versioned else None)
        # The third request gets no answer. Spark repeats the task, which has no time to try again by itself.
        fault = server.faults.withhold("PUBLISH", skip=2)
        sink = changes(spark, rows).write.format("statestore_client").mode("append")
        sink.options(url=server.url, reportKey="report", **options).save()
        assert fault.hits == 1
        assert values(store, "gone", "back", "new", "end") == (
            [b"", b"2", b"", b"1"] if versioned else [None, b"2", None, b"1"]
        )
        report = store.get("report")
    assert report is not None
    # Without versions, what the first attempt had deleted is not there any more for the second.
    assert json.loads(report.value)["resent"] == 0
    assert json.loads(report.value)["written"] == (4 if versioned else 2)


@pytest.mark.spark
@pytest.mark.parametrize("versioned", [True, False])
def test_a_duplicate_of_a_task_that_comes_late(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient, versioned: bool
) -> None:
    """A late duplicate of a task (a speculative copy or a zombie) changes nothing after a later job has deleted the
    key, if there are versions. Without them it brings the key back: nothing in the request tells that it is old."""
    options: dict[str, Any] = {"null_value": "delete", "retry_timeout": 60.0}
    if versioned:
        options["version_column"] = "v"
    first, second = changes(spark, [("a", "1", 1), ("b", "1", 1)]), changes(spark, [("a", None, 2), ("b", "2", 2)])
    url, outcome = server.url, list[WriteReport]()

    def sleep_over(batches: Any) -> Any:
        with StateStoreClient(url) as worker, worker.watch("wake", initial=True) as wake:
            worker.set("asleep", "yes")
            assert wake.get(60.0) is not None
        yield from batches

    late = first.mapInArrow(sleep_over, first.schema)
    with store.watch("asleep", initial=True) as asleep:
        thread = threading.Thread(target=lambda: outcome.append(write_rows(late, url, **options)))
        thread.start()
        assert asleep.get(60.0) is not None
        write_rows(first, url, **options)
        write_rows(second, url, **options)
        assert values(store, "a", "b") == [b"" if versioned else None, b"2"]
        store.set("wake", "now")
        thread.join(60.0)
    assert outcome == [WriteReport(not_applied=2) if versioned else WriteReport(written=2)]
    assert values(store, "a", "b") == ([b"", b"2"] if versioned else [b"1", b"1"])


@pytest.mark.spark
def test_order_by_may_choose_a_delete(spark: SparkSession, server: RecordingServer, store: StateStoreClient) -> None:
    """With order_by the newest row of the whole job may delete the key, and a look-up then finds nothing."""
    rows = [("a", "1", 1), ("a", None, 2), ("b", None, 1), ("b", "2", 2)]
    df = spark.createDataFrame(rows, "key string, value string, v long").repartition(2)
    assert write_rows(df, server.url, null_value="delete", order_by="v").rows == 2
    found = lookup(df.select("key").distinct(), server.url, key="key", gc_freeze=False).collect()
    assert {row["key"]: row["value"] for row in found} == {"a": None, "b": b"2"}


@pytest.mark.spark
def test_the_partition_writer_deletes(spark: SparkSession, server: RecordingServer, store: StateStoreClient) -> None:
    """The partition writer deletes the key of a Row that has None for null."""
    store.set("a", "1")
    changes(spark, [("a", None, 2), ("b", "2", 2)]).foreachPartition(partition_writer(server.url, null_value="delete"))
    assert values(store, "a", "b") == [None, b"2"]
