"""The sink and its siblings inside real Spark jobs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest

from statestore_client import (
    FencingTokenTooOldError,
    HlcTimestamp,
    InvalidArgumentError,
    SettingsError,
    StateStoreClient,
)
from statestore_client.spark import (
    WriteReport,
    get_value,
    latest_by_key,
    lookup,
    partition_writer,
    report_accumulator,
    write_rows,
)
from statestore_client.wire.commands import Set

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from recording_server import RecordingServer

pytestmark = pytest.mark.spark

OLD, NEW = HlcTimestamp(1000, 0, "lock"), HlcTimestamp(2000, 0, "lock")


def frame(spark: SparkSession, rows: int = 10) -> DataFrame:
    """``k0`` to ``k9`` with ``v0`` to ``v9``, in two partitions."""
    return spark.range(0, rows, 1, 2).selectExpr("concat('k', id) key", "concat('v', id) value")


def save(df: DataFrame, server: RecordingServer, **options: Any) -> None:
    df.write.format("statestore_client").mode("append").options(url=server.url, **options).save()


# -- the sink ----------------------------------------------------------------------------------------------------------


def test_sink_writes_every_row(spark: SparkSession, server: RecordingServer, store: StateStoreClient) -> None:
    """Rows of all partitions are stored, their counts under reportKey, and each worker has a client id."""
    save(frame(spark, 3000), server, fencingToken=str(NEW), reportKey="report", clientIdPrefix="etl")
    item = store.get("k2999")
    assert item is not None
    assert item.value == b"v2999"
    report = store.get("report")
    assert report is not None
    assert json.loads(report.value) == {"written": 3000, "not_applied": 0, "rejected": 0, "resent": 0}
    workers = {client for client, command in server.requests if isinstance(command, Set) and command.key != b"report"}
    assert all(re.match(r"etl-local-\d+-\d+-[0-9a-f]{8}$", client) for client in workers)
    assert len(workers) == 2
    with pytest.raises(FencingTokenTooOldError):
        store.set("k0", "other", fencing_token=OLD)


def test_commits_of_micro_batches_share_a_connection(spark: SparkSession, server: RecordingServer) -> None:
    """The commits of micro-batches share a client, because Spark keeps the process that stores the counts."""
    for _ in range(2):
        save(frame(spark), server, reportKey="report", clientIdPrefix="etl")
    clients = [client for client, command in server.requests if isinstance(command, Set) and command.key == b"report"]
    assert len(clients) == 2
    assert len(set(clients)) == 1


def test_sink_deletes(spark: SparkSession, server: RecordingServer, store: StateStoreClient) -> None:
    """operation=delete takes keys, and operation=vdelete compares values."""
    store.set_many([("k0", "v0"), ("k1", "changed"), ("k2", "v2")])
    save(frame(spark), server, operation="vdelete")
    assert sorted(store.scan("k*")) == [b"k1"]
    save(frame(spark).select("key"), server, operation="delete")
    assert sorted(store.scan("k*")) == []


def test_rejected_token_fails_the_job_once(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """A rejected token fails the job with the typed error's text, and no task is repeated, as Spark would do twice."""
    from pyspark.errors import PySparkException

    store.set_many([(f"k{i}", "new") for i in range(10)], fencing_token=NEW)
    before = len(server.sets)
    with pytest.raises(PySparkException, match="FencingTokenTooOldError: the request fencing token is a lower version"):
        save(frame(spark), server, fencingToken=str(OLD))
    assert len(server.sets) - before == 2  # one row for each of the two partitions


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["key"], {}, "SettingsError: there is no column 'value' (valueColumn); the data has 'key'"),
        (["id key", "'v' value"], {}, "SettingsError: the column 'key' (keyColumn) must be a string or binary, not"),
        (["'k' key", "null value"], {}, "SettingsError: the column 'value' (valueColumn) must be a string or binary"),
        (
            ["'k' key", "'v' value"],
            {"ttlcolum": "x"},
            "SettingsError: unknown option ttlcolum; did you mean ttlColumn?",
        ),
        (["'k' key", "'v' value"], {"mqtt.tls": "so"}, "SettingsError: the option mqtt.tls must be true or false"),
    ],
)
def test_mistakes_fail_at_planning(
    spark: SparkSession, server: RecordingServer, columns: list[str], options: dict[str, str], message: str
) -> None:
    """Mistakes fail at planning: nothing is sent, and the message names column or option and shows no password."""
    from pyspark.errors import PySparkException

    df = spark.range(1).selectExpr(*[c if c != "key" else "'k' key" for c in columns])
    with pytest.raises(PySparkException) as caught:
        save(df, server, **{"mqtt.username": "u", "mqtt.password": "hunter2", **options})
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert not server.requests


def test_null_value_fails_the_job_once(spark: SparkSession, server: RecordingServer) -> None:
    """A null that planning cannot see fails the job with the column's name, and the task is not repeated."""
    from pyspark.errors import PySparkException

    df = spark.sql("select 'k' key, cast(null as string) value")
    with pytest.raises(PySparkException, match="InvalidArgumentError: the column 'value' has a null"):
        save(df, server)
    assert not server.requests


def test_overwrite_and_reading_are_explained(spark: SparkSession, server: RecordingServer) -> None:
    """Overwriting and reading are refused with messages that say what to use."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r'use \.mode\("append"\)'):
        frame(spark).write.format("statestore_client").mode("overwrite").option("url", server.url).save()
    with pytest.raises(PySparkException, match=r"use statestore_client\.spark\.lookup"):
        spark.read.format("statestore_client").option("url", server.url).load().schema  # noqa: B018 - Spark Connect looks at it late


def test_streams_are_explained(spark: SparkSession, server: RecordingServer, tmp_path: Path) -> None:
    """Streaming sink and source are refused with messages that say what to use."""
    from pyspark.errors import PySparkException

    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    stream = rate.selectExpr("'k' key", "cast(value as string) value").writeStream.format("statestore_client")
    stream = stream.option("url", server.url).option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match=r"write each micro-batch with statestore_client\.spark\.write_rows"):
        stream.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(PySparkException, match=r"use statestore_client\.spark\.lookup"):
        spark.readStream.format("statestore_client").option("url", server.url).load().schema  # noqa: B018 - Spark Connect looks at it late


def test_a_streaming_query_writes_its_micro_batches(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient, tmp_path: Path
) -> None:
    """A streaming query writes in foreachBatch, and an error of write_rows ends the query with its text."""
    from pyspark.errors import StreamingQueryException

    url = server.url

    def write_batch(batch: DataFrame, _batch_id: int) -> None:
        write_rows(batch, url, version_column="v", null_value="delete")

    def run() -> None:
        reading = spark.readStream.schema("key string, value string, v long").json(str(tmp_path / "in"))
        writing = reading.writeStream.foreachBatch(write_batch).option("checkpointLocation", str(tmp_path / "state"))
        writing.trigger(availableNow=True).start().awaitTermination()

    (tmp_path / "in").mkdir()
    for number, rows in enumerate(
        ['{"key":"a","value":"1","v":1}', '{"key":"a","v":2}\n{"key":"b","value":"2","v":2}']
    ):
        (tmp_path / "in" / f"{number}.json").write_text(rows)
        run()
    assert [item.value for item in store.get_many(["a", "b"]) if item] == [b"", b"2"]
    (tmp_path / "in" / "bad.json").write_text('{"value":"1","v":1}')
    with pytest.raises(StreamingQueryException, match="InvalidArgumentError: the column 'key' has a null"):
        run()


def test_lost_connection_is_retried_in_the_task(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """When the server restarts in the middle of a job, all rows are written by the first attempt of each task."""
    restarted = server.restart_at(1500)
    report = write_rows(frame(spark, 4000), server.url, client_id_prefix="etl")
    assert restarted.is_set()
    assert report == WriteReport(written=4000, resent=report.resent)


def test_spark_finds_the_sink_by_itself(spark: SparkSession, server: RecordingServer, store: StateStoreClient) -> None:
    """Spark finds the format by its module's name in a session that did not register it."""
    other = spark.newSession()
    frame(other).write.format("statestore_client").mode("append").option("url", server.url).save()
    assert len(list(store.scan("k*"))) == 10


# -- zombies -----------------------------------------------------------------------------------------------------------


def test_zombie_of_an_earlier_batch_is_fenced_off(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """A task that sleeps through the next micro-batch of the same lock holder cannot overwrite its states."""
    from threading import Thread

    url = server.url
    outcome: list[BaseException] = []

    def sleep_over(batches: Any) -> Any:
        with StateStoreClient(url) as worker, worker.watch("wake", initial=True) as wake:
            worker.set("asleep", "yes")
            assert wake.get(60.0) is not None
        yield from batches

    def zombie() -> None:
        late = (
            frame(spark)
            .selectExpr("key", "'first' value")
            .coalesce(1)
            .mapInArrow(sleep_over, "key string, value string")
        )
        try:
            write_rows(late, url, fencing_token=first)
        except BaseException as error:  # noqa: BLE001 - judged below
            outcome.append(error)

    with store.lock("pipelines/test") as lease, store.watch("asleep", initial=True) as asleep:
        first = lease.next_token()
        thread = Thread(target=zombie)
        thread.start()
        assert asleep.get(60.0) is not None
        second = lease.next_token()
        save(frame(spark).selectExpr("key", "'second' value").coalesce(1), server, fencingToken=str(second))
        store.set("wake", "now")
        thread.join(60.0)
    assert lease.fencing_token < first < second
    assert [type(error) for error in outcome] == [FencingTokenTooOldError]
    assert {item.value for item in store.get_many([f"k{i}" for i in range(10)]) if item} == {b"second"}


def test_older_rows_of_another_job_do_not_win(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """With a versionColumn the order of jobs and tasks does not matter."""
    sql = "select concat('k', id) key, '{0}' value, timestamp'{1}' at_time from range(5)"
    save(spark.sql(sql.format("newer", "2013-06-01 00:00:00.000002")), server, versionColumn="at_time")
    save(spark.sql(sql.format("older", "2013-06-01 00:00:00.000001")), server, versionColumn="AT_TIME", reportKey="r")
    assert {item.value for item in store.get_many([f"k{i}" for i in range(5)]) if item} == {b"newer"}
    report = store.get("r")
    assert report is not None
    assert json.loads(report.value)["not_applied"] == 5


# -- foreachPartition --------------------------------------------------------------------------------------------------


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


# -- write_rows and latest_by_key --------------------------------------------------------------------------------------


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


def test_versions_below_a_locks_token_are_a_warning(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A job of whole-number versions changes no key written under a lock, whose token is newer, and a warning says
    so."""
    with store.lock("job") as lease:
        store.set_many([(f"k{i}", "locked") for i in range(3)], fencing_token=lease.fencing_token)
    versioned = spark.sql("select concat('k', id) key, 'x' value, 2147483647 sequence from range(3)")
    report = write_rows(versioned, server.url, version_column="sequence")
    assert report == WriteReport(not_applied=3)
    assert "none of 3 rows changed the state store" in caplog.text
    assert "a lock's fencing token is newer than every whole number in 'sequence'" in caplog.text


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


# -- look-ups ----------------------------------------------------------------------------------------------------------


def test_lookup_adds_values_and_versions(spark: SparkSession, server: RecordingServer, store: StateStoreClient) -> None:
    """A look-up adds values and versions, nulls for missing, null and empty keys, and asks for each key of a batch
    once."""
    done = store.set("a", b"\x00\xff")
    df = spark.createDataFrame([("a", 1), ("b", 2), ("a", 3), (None, 4), ("", 5)], "device string, n int").coalesce(1)
    rows = lookup(df, server.url, key="Device", value_as="state").orderBy("n").collect()
    assert [(row["n"], row["state"], row["version"]) for row in rows] == [
        (1, b"\x00\xff", str(done.version)),
        (2, None, None),
        (3, b"\x00\xff", str(done.version)),
        (4, None, None),
        (5, None, None),
    ]
    assert sorted(server.gets) == [b"a", b"b"]


def test_lookup_checks_columns(spark: SparkSession, server: RecordingServer) -> None:
    """A missing or wrong key column, or a name that is taken, fails before anything runs."""
    df = frame(spark)
    with pytest.raises(SettingsError, match="there is no column 'device'"):
        lookup(df, server.url, key="device")
    with pytest.raises(SettingsError, match=r"the column 'id' \(key\) must be a string or binary, not bigint"):
        lookup(spark.range(1), server.url, key="id")
    with pytest.raises(SettingsError, match="already has a column 'value'; choose another name with value_as"):
        lookup(df, server.url, key="key")


def test_get_value_inside_a_udf(spark: SparkSession, server: RecordingServer, store: StateStoreClient) -> None:
    """All get_value() calls of a worker's UDFs share a connection, and a missing key gives None."""
    from pyspark.sql.functions import udf

    store.set("k1", "found")
    url = server.url

    read = udf(lambda key: (get_value(url, key) or b"missing").decode(), "string")
    rows = frame(spark, 6).coalesce(1).select("key", read("key").alias("state")).collect()
    assert {row["key"]: row["state"] for row in rows} == {f"k{i}": "found" if i == 1 else "missing" for i in range(6)}
    assert len({client for client, _ in server.requests if client.startswith("spark-")}) == 1


@pytest.mark.parametrize("key", [None, "", b""])
def test_get_value_of_a_null_is_none(key: str | bytes | None) -> None:
    """get_value() of a null or empty key returns None without a request, so that a row without a key fails no job."""
    assert get_value("mqtt://127.0.0.1:1", key, retry_timeout=0) is None
