"""Look-ups inside real Spark jobs: values beside the rows of a DataFrame, and in a UDF."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark_frames import frame

from statestore_client import (
    SettingsError,
    StateStoreClient,
)
from statestore_client.spark import (
    get_value,
    lookup,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from recording_server import RecordingServer

pytestmark = pytest.mark.spark


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
