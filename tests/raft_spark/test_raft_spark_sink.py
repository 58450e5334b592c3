"""Rows of a real Spark session, in the log of embedded peers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from written_rows import markers_of, numbers, rows_of

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructType

from raft_client import InvalidDataError, RaftClient, SettingsError
from raft_client.spark import register
from raft_client.spark.source import batch_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = StructType().add("index", LongType()).add("data", BinaryType())


def frame(spark: SparkSession, *of: int, parts: int = 2) -> DataFrame:
    register(spark)
    return spark.range(*of, 1, parts).selectExpr("id AS index", "cast(cast(id AS string) AS binary) AS data")


def write(df: DataFrame, log: RaftClient, **options: Any) -> None:
    df.write.format("zmqraft").mode("append").options(seeds=",".join(log.settings.seeds), **options).save()


def complaint(df: DataFrame, log: RaftClient, **options: Any) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        write(df, log, **options)
    return str(caught.value)


@pytest.mark.quick
def test_rows_are_appended(spark: SparkSession, target: RaftClient) -> None:
    """All rows are in the log once, in the order of their partition; without a name of the write there are no markers,
    and another write appends all again."""
    write(frame(spark, 0, 30_000), target, indexColumn="index")
    assert sorted(rows_of(target), key=int) == numbers(30_000)
    assert [row for row in rows_of(target) if int(row) < 15_000] == numbers(15_000)
    write(frame(spark, 0, 10), target, indexColumn="index")
    assert len(rows_of(target)) == 30_010
    assert markers_of(target) == []


def test_a_named_write_is_done_once(spark: SparkSession, target: RaftClient) -> None:
    """A write with a name is done once, however it is cut into tasks, and another name is another write."""
    write(frame(spark, 0, 100), target, indexColumn="index", pipelineId="import/1")
    write(frame(spark, 0, 100, parts=5), target, indexColumn="index", pipelineId="import/1")
    assert sorted(rows_of(target), key=int) == numbers(100)
    assert markers_of(target) == [("begin", 0), ("commit", 0)]
    table = spark.read.format("zmqraft").option("seeds", ",".join(target.settings.seeds))
    state = "type = 'state'"
    assert (table.load().where(state).count(), table.option("markers", True).load().where(state).count()) == (100, 102)
    write(frame(spark, 0, 10), target, indexColumn="index", pipelineId="import/2")
    assert len(rows_of(target)) == 110


def test_a_named_write_that_was_done_before_is_told(target: RaftClient, caplog: pytest.LogCaptureFixture) -> None:
    """People give the name of a stream, which stays the same, to each run of a job: its rows would be missed later."""
    options = {"seeds": ",".join(target.settings.seeds), "indexColumn": "index", "pipelineId": "daily"}
    for day, warnings in ((1, 0), (2, 1)):
        writer = batch_writer(options, SCHEMA, overwrite=False)
        rows = pa.RecordBatch.from_pydict({"index": [day], "data": [b"%d" % day]})
        writer.commit([writer.write(iter([rows]))])
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert said == warnings * [
            "nothing was appended: the log has the write 'daily' already; rows of another write need a pipelineId of "
            "their own"
        ]
    assert rows_of(target) == [b"1"]


def test_a_named_write_that_failed_is_completed(spark: SparkSession, target: RaftClient) -> None:
    """A write that failed in the middle, for good, is completed under its name with the rows that were missing."""
    broken = frame(spark, 0, 100).selectExpr("index", "if(index = 77, null, data) AS data")
    text = complaint(broken.coalesce(1), target, indexColumn="index", pipelineId="import")
    assert "InvalidDataError: the column 'data' has nulls" in text
    half = frame(spark, 0, 40)
    broken = half.union(broken)
    complaint(broken, target, indexColumn="index", pipelineId="import")
    assert sorted(rows_of(target), key=int) == numbers(50)
    write(frame(spark, 0, 100, parts=3), target, indexColumn="index", pipelineId="import")
    assert sorted(rows_of(target), key=int) == numbers(100)


def test_ids_of_each_kind(spark: SparkSession, target: RaftClient) -> None:
    """Ids are made of a column, or of the content, with which equal rows are one entry."""
    df = frame(spark, 0, 100).selectExpr("'x' || (index % 10) AS data", "uuid() AS id", "index AS number")
    write(df.selectExpr("data", "'row ' || number AS id"), target, idColumn="id")
    assert len(rows_of(target)) == 100
    write(df, target, idColumn="number")
    assert len(rows_of(target)) == 200
    write(df, target, contentIds=True)
    assert len(rows_of(target)) == 210
    write(df.withColumnRenamed("data", "payload"), target, contentIds=True, dataColumn="payload")
    assert len(rows_of(target)) == 220


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "a row that is written again must get the same id: give one"),
        ({"indexColumn": "index", "contentIds": "true"}, "indexColumn, idColumn and contentIds are three ways"),
        ({"indexColumn": "nothing"}, "indexColumn: there is no column 'nothing'; there are index, data"),
        ({"indexColumn": "data"}, "indexColumn: the column 'data' is binary; it must be tinyint or"),
        (
            {"idColumn": "index", "dataColumn": "index"},
            "dataColumn: the column 'index' is bigint; it must be string or binary: select cast(index as string) as",
        ),
        ({"contentIds": "yes"}, "the option contentIds must be true or false, not 'yes'"),
        ({"idColumn": "index", "pipelineId": " "}, "pipelineId must not be empty"),
        ({"idcolum": "index"}, "unknown option idcolum; did you mean idColumn"),
        ({"idColumn": "index", "firstBatch": "-1"}, "firstBatch must be a whole number"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], expected: str) -> None:
    """Wrong options are refused when the write is planned: Spark begins no task then."""
    with pytest.raises(SettingsError, match=f"^{re.escape(expected)}"):
        batch_writer({"seeds": "tcp://127.0.0.1:1", **options}, SCHEMA, overwrite=False)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"index": [1], "data": [b""]}, "a row has 0 in 'data'"),
        ({"index": [-1], "data": [b"x"]}, "the index column 'index' has negative values"),
        ({"index": [1, 1], "data": [b"a", b"b"]}, "two rows of a batch have the same value in 'index'"),
        ({"index": pa.array([None], pa.int64()), "data": [b"x"]}, "the column 'index' has nulls"),
    ],
)
def test_rows_that_cannot_be_appended(target: RaftClient, rows: dict[str, Any], reason: str) -> None:
    """Rows that cannot be entries, and rows with the same identity, fail the commit of the write, with the reason."""
    writer = batch_writer({"seeds": ",".join(target.settings.seeds), "indexColumn": "index"}, SCHEMA, overwrite=False)
    done = writer.write(iter([pa.RecordBatch.from_pydict(rows)]))
    with pytest.raises(InvalidDataError, match=re.escape(reason)):
        writer.commit([done])
    assert rows_of(target) == []


def test_overwriting_is_refused(spark: SparkSession, target: RaftClient) -> None:
    """A log is not overwritten."""
    from pyspark.errors import PySparkException

    seeds = ",".join(target.settings.seeds)
    writer = frame(spark, 0, 3).write.format("zmqraft").options(seeds=seeds, indexColumn="index")
    with pytest.raises(PySparkException, match=r"use [.]mode"):
        writer.mode("overwrite").save()
