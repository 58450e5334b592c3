"""Jobs of a real Spark session that read the log of scripted peers, and one that reads the log of real peers."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from raft_client import (
    HistoryOutrunError,
    NoLeaderError,
    OutOfDateLogError,
    RaftClient,
    RaftSettings,
    SettingsError,
    new_request_id,
)
from raft_client.spark import read_entries, register

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from support.scripted_peers import ScriptedCluster

pytestmark = pytest.mark.spark

LOG_INFO = b"\x25"


def load(spark: SparkSession, peers: ScriptedCluster, **options: Any) -> DataFrame:
    register(spark)
    return spark.read.format("zmqraft").options(seeds=peers.seeds, **options).load()


def partitions(df: DataFrame) -> int:
    """Of those that have rows."""
    return df.selectExpr("spark_partition_id() id").distinct().count()


def complaint(spark: SparkSession, **options: Any) -> str:
    """What a read with these options says before any task starts."""
    from pyspark.errors import AnalysisException

    register(spark)
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("zmqraft").options(**options).load().count()
    return str(caught.value)


def test_a_log_is_a_table(spark: SparkSession, peers: ScriptedCluster) -> None:
    """A log is a table with columns, types and values on which SQL works."""
    peers.fill(9_999)
    with RaftClient(peers.seeds) as client:
        request_id = new_request_id()
        client.append(b"last", request_id)
    df = read_entries(spark, peers.seeds, partitions=3)
    assert partitions(df) == 3
    types = [(f.name, f.dataType.simpleString()) for f in df.schema]
    assert types == [
        ("index", "bigint"), ("term", "bigint"), ("type", "string"),
        ("request_id", "binary"), ("time", "timestamp"), ("data", "binary"),
    ]  # fmt: skip
    assert df.selectExpr("count(*)", "count(distinct index)", "min(index)", "max(index)").first()[:] == (
        10_000, 10_000, 1, 10_000,
    )  # fmt: skip
    row = df.where("index = 10000").select("*", df.time.cast("long").alias("seconds")).first()
    assert (row.term, row.type, bytes(row.data), bytes(row.request_id)) == (1, "state", b"last", request_id.raw)
    assert datetime.fromtimestamp(row.seconds, UTC) == datetime.fromtimestamp(request_id.seconds, UTC)


def test_streams_need_a_later_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PySpark 4.1, whose streams know no limits, a stream is refused with a word on what to do."""
    from raft_client.spark.source import ZmqRaftDataSource

    monkeypatch.delitem(sys.modules, "raft_client.spark.stream_source", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    with pytest.raises(SettingsError, match=r"needs PySpark 4\.2 or later.*read_entries"):
        ZmqRaftDataSource({"seeds": "tcp://127.0.0.1:1"}).streamReader(None)  # type: ignore[arg-type]  # not reached


def test_the_range_is_fixed(spark: SparkSession, peers: ScriptedCluster) -> None:
    """Every action on a DataFrame reads the same entries, and the next DataFrame sees later ones."""
    peers.fill(10)
    early, unused = load(spark, peers, after=3), read_entries(spark, peers.seeds, after=3)
    assert early.count() == 7
    peers.fill(5)
    assert (early.count(), unused.count(), load(spark, peers, after=3).count()) == (7, 7, 12)


def test_the_format_takes_all_options(spark: SparkSession, peers: ScriptedCluster) -> None:
    """The format takes after, until, partitions and settings as options, and an empty range is an empty table."""
    peers.fill(30)
    df = load(spark, peers, after=10, until=20, partitions=4, requestTimeout=5, responseTimeout=0.2)
    assert partitions(df) == 4
    assert sorted(row["index"] for row in df.collect()) == list(range(11, 21))
    assert load(spark, peers, after=30).collect() == []


def test_spark_need_not_read_to_the_end(spark: SparkSession, peers: ScriptedCluster) -> None:
    """A task that has enough rows stops early, and the next one works."""
    peers.fill(30_000)
    df = read_entries(spark, peers.seeds, partitions=2)
    assert len(df.limit(5).collect()) == 5
    assert df.count() == 30_000


def test_wrong_options_fail_before_any_task(spark: SparkSession, peers: ScriptedCluster) -> None:
    """Wrong options fail before any task with the option's name and without a secret key."""
    text = complaint(
        spark, seeds=peers.seeds, curveServerKey="a" * 40, curvePublicKey="b" * 40, curveSecretKey="c" * 39
    )
    assert "SettingsError: curve_secret_key must be a CURVE key" in text
    assert "c" * 39 not in text
    with pytest.raises(SettingsError, match="partitions must be a whole number"):
        read_entries(spark, peers.seeds, partitions=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the option seeds is missing"),
        ({"seeds": "tcp://127.0.0.1:1", "begin": "1"}, "unknown option begin"),
        ({"seeds": "tcp://127.0.0.1:1", "after": "2", "until": "1"}, "until must not be before after"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    """What Spark calls for a read names the option, in Spark's words for it."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    from raft_client.spark.source import ENTRY_SCHEMA, ZmqRaftDataSource

    schema = StructType([StructField(name, BinaryType()) for name in ENTRY_SCHEMA.names])
    with pytest.raises(SettingsError, match=message):
        ZmqRaftDataSource(options).reader(schema)


def test_another_schema_is_refused() -> None:
    """Another schema is refused, because the columns are fixed."""
    from pyspark.sql.types import StructType

    from raft_client.spark.source import ZmqRaftDataSource

    with pytest.raises(SettingsError, match="the columns of zmqraft are fixed"):
        ZmqRaftDataSource({"seeds": "tcp://127.0.0.1:1"}).reader(StructType().add("key", "string"))


def test_what_the_log_does_not_have_fails_before_any_task(spark: SparkSession, peers: ScriptedCluster) -> None:
    """A range that the log does not have fails before any task, with a typed error of the helper and the error's name
    in Spark's."""
    peers.fill(10)
    with pytest.raises(OutOfDateLogError):
        read_entries(spark, RaftSettings(seeds=peers.seeds, election_grace=0.01), after=11)
    assert "OutOfDateLogError: the log ends at 10, before 11" in complaint(
        spark, seeds=peers.seeds, until=11, electionGrace=0.01
    )
    numbers = [b"\x01", b"\x05", b"\x0a", b"\x0a", b"\x0a", b"\x06", b"\x00"]
    peers.script("1", LOG_INFO, lambda _: [[b"\x01", b"\xa11", *numbers]])
    with pytest.raises(HistoryOutrunError):
        read_entries(spark, peers.seeds)
    assert "HistoryOutrunError: the log was compacted" in complaint(spark, seeds=peers.seeds)
    assert load(spark, peers, snapshot="skip").count() == 6


def test_no_cluster_fails_before_any_task(spark: SparkSession, peers: ScriptedCluster) -> None:
    """Without a cluster the query fails before any task, after the time-out, with the reason."""
    with pytest.raises(NoLeaderError):
        read_entries(spark, RaftSettings(seeds=peers.seeds, cluster="another", request_timeout=0.3))
    assert "NoLeaderError" in complaint(spark, seeds=peers.seeds, cluster="another", requestTimeout=0.3)


@pytest.mark.interop
def test_the_log_of_real_peers(spark: SparkSession, tmp_path: Path) -> None:
    """Real peers' 20,000 entries are read in four ranges; the compacted log is refused, skipped, and read with its
    snapshot."""
    from support.raft_peers import RaftCluster, why_not

    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with RaftCluster(tmp_path, ident="spark") as cluster:
        settings = RaftSettings(seeds=cluster.seeds, cluster="spark")
        with RaftClient(settings) as client:
            indexes = client.append_many(b"%d;" % n for n in range(20_000))
        df = read_entries(spark, settings, after=100, partitions=4)
        found = {row["index"]: bytes(row.data) for row in df.where("type = 'state'").collect()}
        assert found == {index: b"%d;" % n for n, index in enumerate(indexes) if index > 100}
        for peer in cluster.running:
            cluster.compact(peer, 15_000)
        with pytest.raises(HistoryOutrunError) as caught:
            read_entries(spark, settings)
        assert caught.value.snapshot_index == 15_000
        assert read_entries(spark, settings, snapshot="skip").count() == indexes[-1] - 15_000
        whole = read_entries(spark, settings, snapshot="deliver", partitions=2)
        [snapshot] = whole.where("type = 'snapshot'").collect()
        assert snapshot["index"] == 15_000
        assert bytes(snapshot.data) == b"".join(b"%d;" % n for n, index in enumerate(indexes) if index <= 15_000)
        assert whole.count() == 1 + indexes[-1] - 15_000
