"""``writeStream.format("statestore_client")``: repeated micro-batches do no harm, and what would is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import LongType, StringType, StructType

from statestore_client import HlcTimestamp, SettingsError, StateStoreClient
from statestore_client.spark import write_rows
from statestore_client.spark.sink import StateStoreDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from recording_server import RecordingServer

pytestmark = pytest.mark.spark

COLUMNS = "key string, value string, v long"
SCHEMA = StructType().add("key", StringType()).add("value", StringType()).add("v", LongType())


class Query:
    """Files of rows, and a query that writes what is new and ends."""

    def __init__(self, spark: SparkSession, server: RecordingServer, folder: Path) -> None:
        self._spark, self._url, self._folder = spark, server.url, folder
        self._files = 0
        (folder / "in").mkdir()

    def add(self, *rows: tuple[str | None, str | None, int]) -> None:
        text = "".join(json.dumps(dict(zip(("key", "value", "v"), row, strict=True))) + "\n" for row in rows)
        (self._folder / "in" / f"{self._files}.json").write_text(text)
        self._files += 1

    def run(self, mode: str = "append", **options: Any) -> None:
        reading = self._spark.readStream.schema(COLUMNS).json(str(self._folder / "in"))
        if mode == "complete":
            reading = reading.groupBy("key").agg({"v": "count"}).withColumnRenamed("count(v)", "v")
        writing = reading.writeStream.format("statestore_client").outputMode(mode).options(url=self._url, **options)
        writing = writing.option("checkpointLocation", str(self._folder / "state")).trigger(availableNow=True)
        writing.queryName(f"q{self._files}").start().awaitTermination()

    def forget_last_commit(self) -> None:
        """What a driver leaves behind that was killed between its last write and its note of it."""
        commits = sorted((self._folder / "state" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)


@pytest.fixture
def query(spark: SparkSession, server: RecordingServer, tmp_path: Path) -> Query:
    return Query(spark, server, tmp_path)


def test_repeated_micro_batch_leaves_newer_rows(
    query: Query, spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """A micro-batch whose commit is lost is written again: newer rows and deletes of others stay as they are."""
    query.add(("a", "1", 1), ("b", "1", 1), ("c", "1", 1))
    options = {"versionColumn": "v", "nullValue": "delete", "reportKey": "report"}
    query.run(**options)
    newer = spark.createDataFrame([("a", "2", 2), ("b", None, 2)], COLUMNS)
    write_rows(newer, server.url, version_column="v", null_value="delete")
    query.forget_last_commit()
    server.requests.clear()
    query.run(**options)
    assert {b"a", b"b", b"c"} <= set(server.sets)  # it was repeated indeed
    assert [item.value for item in store.get_many(["a", "b", "c"]) if item] == [b"2", b"", b"1"]
    report = store.get("report")
    assert report is not None
    assert json.loads(report.value) == {"written": 1, "not_applied": 2, "rejected": 0, "resent": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"a streaming query needs the option versionColumn: .* statestore_client\.spark\.ActiveStandby"),
        (
            {"fencingToken": str(HlcTimestamp(1, 0, "lock"))},
            r"use statestore_client\.spark\.ActiveStandby",
        ),
        ({"versionColumn": "v", "operation": "vdelete"}, "versionColumn is for operation=set and operation=delete"),
        ({"versionColumn": "version"}, r"there is no column 'version' \(versionColumn\)"),
        ({"versionColumn": "v", "keyColum": "k"}, "unknown option keycolum; did you mean keyColumn"),
    ],
)
def test_unusable_options_are_named(options: dict[str, str], message: str) -> None:
    """What a stream cannot keep its promise with is refused, with what to use instead."""
    with pytest.raises(SettingsError, match=f"^{message}"):
        StateStoreDataSource({"url": "mqtt://127.0.0.1:1", **options}).streamWriter(SCHEMA, overwrite=False)


def test_complete_mode_is_refused(query: Query) -> None:
    """An aggregation that is written as a whole is refused, with what to use instead."""
    query.add(("a", "1", 1))
    reason = r"use the output mode append, .* is written with statestore_client\.spark\.BatchWriter in foreachBatch"
    with pytest.raises(PySparkException, match=f"SettingsError: {reason}"):
        query.run("complete", versionColumn="v")


def test_a_checkpoint_outlives_a_wrong_output_mode(query: Query, store: StateStoreClient) -> None:
    """The mode update is refused by Spark itself, which has made the checkpoint by then: it is good for append."""
    query.add(("a", "1", 1))
    with pytest.raises(StreamingQueryException, match="statestore_client does not support Update mode"):
        query.run("update", versionColumn="v")
    assert store.get("a") is None
    query.run("append", versionColumn="v")
    item = store.get("a")
    assert item is not None
    assert item.value == b"1"


def test_unusable_row_ends_the_query(query: Query, store: StateStoreClient) -> None:
    """A row that cannot be written ends the query with its text, and the rows before it stay written."""
    query.add(("a", "1", 1))
    query.run(versionColumn="v")
    query.add((None, "1", 1))
    with pytest.raises(StreamingQueryException, match="InvalidArgumentError: the column 'key' has a null"):
        query.run(versionColumn="v")
    item = store.get("a")
    assert item is not None
    assert item.value == b"1"
