"""The functions that take a DataFrame or its partitions, inside real Spark jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from spark_frames import NEW, OLD, frame, save

from statestore_client import (
    FencingTokenTooOldError,
    InvalidArgumentError,
    SettingsError,
    StateStoreClient,
)
from statestore_client.spark import (
    WriteReport,
    latest_by_key,
    lookup,
    partition_writer,
    report_accumulator,
    write_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from recording_server import RecordingServer

pytestmark = pytest.mark.spark


@pytest.mark.classic
def test_partition_writer_reports_to_an_accumulator(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """The partition writer counts the written rows of all partitions."""
    report = report_accumulator(spark)
    frame(spark, 500).foreachPartition(partition_writer(server.url, fencing_token=NEW, report=report))
    assert report.value == WriteReport(written=500)
    assert len(list(store.scan("k*"))) == 500


@pytest.mark.classic
def test_partition_writer_reports_a_rejected_token(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """With an accumulator the partition writer reports a rejected token, and no task is repeated."""
    store.set_many([(f"k{i}", "new") for i in range(10)], fencing_token=NEW)
    before = len(server.sets)
    report = report_accumulator(spark)
    frame(spark).foreachPartition(partition_writer(server.url, fencing_token=OLD, report=report))
    assert report.value.rejected == len(server.sets) - before == 2
    with pytest.raises(FencingTokenTooOldError):
        report.value.raise_for_error()


@pytest.mark.classic
def test_partition_writer_reports_a_missing_column(spark: SparkSession, server: RecordingServer) -> None:
    """The partition writer's error names a column that its rows lack."""
    report = report_accumulator(spark)
    frame(spark).foreachPartition(partition_writer(server.url, value_column="state", report=report))
    assert str(report.value.error) == "the rows have no column 'state'"
    assert not server.requests


def test_write_rows_raises_the_typed_error(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """write_rows() raises the typed error on the driver after one attempt, also with error_mode=continue if the job is
    at fault."""
    store.set_many([(f"k{i}", "new") for i in range(4)], fencing_token=NEW)
    for error_mode in ("fail", "continue"):
        with pytest.raises(FencingTokenTooOldError):
            write_rows(frame(spark), server.url, fencing_token=OLD, error_mode=error_mode)
    with pytest.raises(SettingsError, match="there is no column 'x'"):
        write_rows(frame(spark), server.url, key_column="x")


def test_rejected_rows_are_a_warning(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient, caplog: pytest.LogCaptureFixture
) -> None:
    """With error_mode=continue the counts are returned, and a warning tells how many rows were rejected, and why the
    first."""
    store.set_many([(f"k{i}", "new") for i in range(4)], fencing_token=NEW)
    report = write_rows(frame(spark), server.url, error_mode="continue")
    assert (report.written, report.rejected) == (6, 4)
    assert f"4 of 10 rows were rejected and are not in the state store at {server.url}; the first: " in caplog.text
    assert "FencingTokenRequiredError: a fencing token is required for this request" in caplog.text


def test_a_key_twice_in_a_job_is_an_error(spark: SparkSession, server: RecordingServer) -> None:
    """A key that is in two rows of a job is an error, also in two partitions, and beside one that a collation holds
    equal."""
    rows = spark.sql("select if(id = 999, 'k1', concat('k', id)) key, 'v' value from range(0, 1000, 1, 4)")
    with pytest.raises(InvalidArgumentError, match=r"^the column 'key' has the key b'k1' twice, and nothing tells"):
        write_rows(rows, server.url)
    folded = spark.sql(
        "select concat(if(id % 2 = 0, 'a', 'A'), id div 4) collate UTF8_LCASE key, 'v' value from range(8)"
    )
    with pytest.raises(InvalidArgumentError, match=r"has the key b'[aA][01]' twice"):
        write_rows(folded, server.url)
    assert write_rows(folded.where("key collate UTF8_BINARY = 'a0'").limit(1), server.url).written == 1


def test_order_by_chooses_among_the_rows_of_a_key(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """order_by chooses among the rows of a key over the whole job, and a row without a key is refused, not left out."""
    events = "select concat('k', id % 7) key, cast(id as string) value, id seq from range(0, 1000, 1, 4)"
    assert write_rows(spark.sql(events), server.url, order_by="seq").written == 7
    assert {item.value for item in store.get_many([f"k{i}" for i in range(7)]) if item} == {
        str(i).encode() for i in range(993, 1000)
    }
    with pytest.raises(InvalidArgumentError, match="the column 'key' has a null"):
        write_rows(spark.sql("select cast(null as string) key, 'v' value, 1 seq"), server.url, order_by=["seq"])
    with pytest.raises(SettingsError, match="order_by and duplicate_keys='error' exclude each other"):
        write_rows(spark.sql(events), server.url, order_by="seq", duplicate_keys="error")


def test_what_sees_one_partition_refuses_to_promise_more(spark: SparkSession, server: RecordingServer) -> None:
    """The sink and the partition writer refuse order_by and name the function that sees the whole job."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"duplicateKeys=error needs all rows of the job.*write_rows"):
        save(frame(spark), server, duplicateKeys="error")
    with pytest.raises(SettingsError, match="duplicate_keys='error' needs all rows of the job"):
        partition_writer(server.url, duplicate_keys="error")


def test_latest_by_key_keeps_one_row(spark: SparkSession) -> None:
    """latest_by_key() keeps the row that is greatest by all columns, nulls first, and leaves out rows without a key."""
    rows = [("a", 1, 5), ("a", 2, 0), ("a", 2, 3), ("b", 1, None), ("b", 1, 1), (None, 9, 9)]
    events = spark.createDataFrame(rows, "device string, at int, seq int")
    newest = latest_by_key(events, key="device", order_by=["at", "seq"]).collect()
    assert sorted(tuple(row) for row in newest) == [("a", 2, 3), ("b", 1, 1)]
    one_column = latest_by_key(events, key="device", order_by="seq").collect()
    assert sorted(tuple(row) for row in one_column) == [("a", 1, 5), ("b", 1, 1)]


@pytest.mark.parametrize("rows", [[("a", "1")], iter([("a", "1")]), pyarrow.table({"key": ["a"]}).to_pandas()])
def test_what_is_no_dataframe_of_spark_is_told_what_to_do(rows: Any) -> None:
    """Rows, as in foreachPartition, and a pandas table given in place of a DataFrame are a typed error that says what
    to do."""
    for call in (
        lambda: write_rows(rows, "mqtt://127.0.0.1:1"),
        lambda: lookup(rows, "mqtt://127.0.0.1:1", key="key"),
        lambda: latest_by_key(rows, key="key", order_by="at"),
    ):
        with pytest.raises(SettingsError, match=r"takes a DataFrame of Spark, not .* use partition_writer"):
            call()
