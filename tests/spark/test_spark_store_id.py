"""A write whose server loses its data in the middle fails, and does not say that all rows are written."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING

import pytest
from support.waiting import eventually

from statestore_client import ConnectionSettings, StateStoreClient, StoreReplacedError
from statestore_client.server import EmbeddedServer
from statestore_client.spark import write_rows
from statestore_client.spark.options import WriteOptions
from statestore_client.spark.report import WriteReport
from statestore_client.spark.rows import Rows
from statestore_client.spark.writing import report_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def report(*stores: str, written: int = 1) -> WriteReport:
    return WriteReport(written=written, stores=frozenset(stores))


def test_reports_of_two_stores_are_an_error() -> None:
    """The sum of tasks that wrote into two stores fails; without names, and with one name, it does not."""
    assert (report("a") + report("a") + report() + WriteReport(rejected=1)).error is None
    total = report("a") + report("b") + report("a")
    assert isinstance(total.error, StoreReplacedError)
    assert total.written == 3
    copied = pickle.loads(pickle.dumps(total))  # noqa: S301 - pickled in this line
    assert copied.stores == {"a", "b"}
    earlier = StoreReplacedError("earlier")
    assert (WriteReport(error=earlier, stores=frozenset("a")) + report("b")).error is earlier


@pytest.mark.parametrize("at", [1, 5000, 9999])
def test_a_task_over_a_restart_that_loses_everything(at: int) -> None:
    """One task's rows go to two stores, in one batch or in two: its report is an error."""
    with EmbeddedServer() as server:

        def rows() -> Iterator[Rows]:
            for i in range(0, 10_000, 1000):
                if i <= at < i + 1000:
                    server.restart(keep_state=False)
                yield Rows([f"k{n}" for n in range(i, i + 1000)], ["v"] * 1000, None, None)

        settings = ConnectionSettings.from_url(server.url)
        result = report_partition(rows(), settings, WriteOptions(), None, f"over a restart at {at}")
        if at < 1000:  # before the first row
            assert (result.error, result.written) == (None, 10_000)
        else:
            assert isinstance(result.error, StoreReplacedError)


@pytest.mark.spark
@pytest.mark.parametrize("way", ["write_rows", "sink"])
def test_a_job_over_a_restart_that_loses_everything(spark: SparkSession, way: str) -> None:
    """The job fails with its reason, whichever tasks wrote before and after."""
    df = spark.range(0, 40_000, 1, 8).selectExpr("concat('k', id) key", "'v' value")
    with EmbeddedServer() as server:

        def write() -> None:
            if way == "sink":
                options = {"url": server.url, "duplicateKeys": "last"}
                df.write.format("statestore_client").options(**options).mode("append").save()
            else:
                write_rows(df, server.url, duplicate_keys="last")

        def lose_everything() -> None:
            eventually(lambda: server.counters.received_messages > 12_000, "some rows are written", timeout_s=60)
            server.restart(keep_state=False)

        thread = threading.Thread(target=lose_everything)
        thread.start()
        try:
            with pytest.raises(Exception, match="began anew with an empty store"):  # Spark's own, for the sink
                write()
        finally:
            thread.join()
        with StateStoreClient(server.url) as store:
            assert sum(1 for _ in store.scan("k*")) < 40_000
