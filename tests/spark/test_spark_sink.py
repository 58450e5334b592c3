"""The sink inside real Spark jobs: batches, micro-batches, and tasks that come too late."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from recording_server import RecordingServer
from spark_frames import NEW, OLD, frame, save

from statestore_client import (
    FencingTokenTooOldError,
    StateStoreClient,
)
from statestore_client.spark import (
    WriteReport,
    write_rows,
)
from statestore_client.wire.commands import Set

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


# -- the sink ----------------------------------------------------------------------------------------------------------


@pytest.mark.quick
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


def test_mistakes_fail_at_planning(spark: SparkSession, server: RecordingServer) -> None:
    """Mistakes fail at planning: nothing is sent, and the message names column or option and shows no password."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        save(spark.range(1), server, **{"mqtt.username": "u", "mqtt.password": "hunter2"})
    assert "SettingsError: there is no column 'key' (keyColumn); the data has 'id'" in str(caught.value)
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


def test_tables_of_the_catalog_are_written(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient
) -> None:
    """SQL writes with INSERT INTO a table, which needs the options each time, and into a view, which keeps them."""
    from pyspark.errors import PySparkException

    spark.sql("CREATE TABLE pumps (key STRING, value STRING) USING statestore_client")
    try:
        spark.sql(f"INSERT INTO pumps WITH (url = '{server.url}') VALUES ('table', '1')")  # noqa: S608 - the server's own
        with pytest.raises(PySparkException, match=r"INSERT INTO … WITH \(url = '…'\)"):
            spark.sql("INSERT INTO pumps VALUES ('table', '2')")
        save_to_table = frame(spark, 1).write.format("statestore_client").mode("append").option("url", server.url)
        save_to_table.saveAsTable("pumps")
        with pytest.raises(PySparkException, match=r"use statestore_client\.spark\.lookup"):
            spark.sql("SELECT * FROM pumps").collect()
    finally:
        spark.sql("DROP TABLE pumps")
    columns, options = "key STRING, value STRING", f"url '{server.url}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW fans ({columns}) USING statestore_client OPTIONS ({options})")
    spark.sql("INSERT INTO fans VALUES ('view', '3')")
    assert [item and item.value for item in store.get_many(["table", "k0", "view"])] == [b"1", b"v0", b"3"]


def test_reading_a_stream_is_explained(spark: SparkSession, server: RecordingServer) -> None:
    """The store as a streaming source is refused with a message that says what to use."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"use statestore_client\.spark\.lookup"):
        spark.readStream.format("statestore_client").option("url", server.url).load().schema  # noqa: B018 - Spark Connect looks at it late


def test_a_streaming_query_writes_its_micro_batches(
    spark: SparkSession, server: RecordingServer, store: StateStoreClient, tmp_path: Path
) -> None:
    """A streaming query writes in foreachBatch, and an error of write_rows ends the query with its text."""
    from pyspark.errors import StreamingQueryException

    url = server.url

    (tmp_path / "in").mkdir()
    for number, rows in enumerate(
        ['{"key":"a","value":"1","v":1}', '{"key":"a","v":2}\n{"key":"b","value":"2","v":2}', '{"value":"1","v":1}']
    ):
        file = tmp_path / "in" / f"{number}.json"
        file.write_text(rows)
        os.utime(file, (1_000_000 + number,) * 2)  # Spark takes the oldest first

    def write_batch(batch: DataFrame, _batch_id: int) -> None:
        write_rows(batch, url, version_column="v", null_value="delete")

    reading = spark.readStream.schema("key string, value string, v long").option("maxFilesPerTrigger", 1)
    writing = reading.json(str(tmp_path / "in")).writeStream.foreachBatch(write_batch)
    query = writing.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="InvalidArgumentError: the column 'key' has a null"):
        query.awaitTermination()
    assert [item.value for item in store.get_many(["a", "b"]) if item] == [b"", b"2"]


def test_lost_connection_is_retried_in_the_task(spark: SparkSession, tmp_path: Path) -> None:
    """When the server restarts from its disk in the middle of a job, all rows are written by the first attempt of each
    task.
    """
    with RecordingServer(data=tmp_path) as server, StateStoreClient(server.url) as store:
        restarted = server.restart_at(1500, keep_state=True)
        report = write_rows(frame(spark, 4000), server.url, client_id_prefix="etl")
        assert restarted.is_set()
        assert report == WriteReport(written=4000, resent=report.resent)
        assert len(list(store.scan("k*"))) == 4000


def test_spark_finds_the_sink_by_itself(spark: SparkSession, server: RecordingServer, store: StateStoreClient) -> None:
    """Spark finds both formats by the names of their modules in a session that did not register them."""
    from pyspark.errors import PySparkException

    other = spark.newSession()
    with pytest.raises(PySparkException, match="SettingsError: the option seeds is missing"):
        other.read.format("zmqraft").load().count()
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
