"""A pipeline in one process: it goes on from the marker, deletes, skips, and stops when it leads no longer.

The source is Spark's own for files: each file is a micro-batch, and a start reads them all again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.ports import reserved_port

from statestore_client import FencingTokenTooOldError, StateStoreClient
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.spark import ActiveStandby, Marker, PipelineEvent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from recording_server import RecordingServer

pytestmark = [pytest.mark.spark, pytest.mark.classic]

COLUMNS = "key string, value string, index long"


class Pipeline:
    """Files of rows, and an ActiveStandby that reads them."""

    def __init__(self, spark: SparkSession, server: RecordingServer, folder: Path) -> None:
        self._spark = spark
        self._url = server.url
        self._folder = folder
        self._files = 0
        self.events: list[PipelineEvent] = []
        self.on_event: Callable[[PipelineEvent], object] = lambda _event: None

    def add(self, *rows: tuple[str | None, str | None, int | None]) -> None:
        """A micro-batch."""
        text = "".join(json.dumps(dict(zip(("key", "value", "index"), row, strict=True))) + "\n" for row in rows)
        part = self._folder / f".{self._files}"
        part.write_text(text)
        os.utime(part, (1_000_000 + self._files,) * 2)  # Spark takes the oldest first
        part.rename(self._folder / f"{self._files:03d}.json")
        self._files += 1

    def source(self, spark: SparkSession, _after: int) -> DataFrame:
        reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        return reader.option("latestFirst", "false").json(str(self._folder))

    def driver(self, **options: Any) -> ActiveStandby:
        def listener(event: PipelineEvent) -> None:
            self.events.append(event)
            self.on_event(event)

        arguments = {"trigger": {"availableNow": True}, "null_value": "delete", "listener": listener, **options}
        return ActiveStandby(self._spark, self._url, "p", arguments.pop("source", self.source), **arguments)

    def run(self, **options: Any) -> None:
        """Lead until all files are read."""
        self.driver(**options).run()

    def marker(self, store: StateStoreClient) -> Marker:
        item = store.get("pipelines/p/marker")
        assert item is not None
        return Marker.decode(item.value, "marker")

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def pipeline(spark: SparkSession, server: RecordingServer, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, server, tmp_path)


def test_newest_row_of_each_key_is_written(pipeline: Pipeline, store: StateStoreClient) -> None:
    """Of a batch, the row with the greatest index is written for each key; null deletes, with a tombstone."""
    pipeline.add(("a", "1", 0), ("b", "1", 1), ("a", "2", 2), ("c", "1", 3), ("c", None, 4))
    pipeline.add(("b", None, 5), ("a", "3", 6))
    pipeline.run()
    assert [store.get(key).value for key in "abc"] == [b"3", b"", b""]
    assert pipeline.marker(store) == Marker(6, 7)
    assert pipeline.kinds() == ["standing by", "leading", "writing", "written", "writing", "written"]
    assert [event.keys for event in pipeline.events if event.kind == "written"] == [3, 2]


def test_next_driver_goes_on_from_the_marker(
    pipeline: Pipeline, store: StateStoreClient, server: RecordingServer
) -> None:
    """Rows at or below the marker are skipped, though the source gives them again; nothing is written for them."""
    pipeline.add(("a", "1", 0), ("b", "1", 1))
    pipeline.run()
    server.requests.clear()
    pipeline.add(("c", "1", 2))
    starts = []
    pipeline.run(source=lambda spark, after: (starts.append(after), pipeline.source(spark, after))[1])
    assert starts == [1, 1]  # the first one is the rehearsal
    assert not {b"a", b"b"} & set(server.sets)
    assert pipeline.marker(store) == Marker(2, 3)


def test_rehearsal_writes_nothing(pipeline: Pipeline, store: StateStoreClient, server: RecordingServer) -> None:
    """A driver that stands by has read what waits, or has found that nothing does, and has written nothing."""
    stop = threading.Event()
    pipeline.on_event = lambda event: stop.set() if event.kind == "standing by" else None
    with store.lock("pipelines/p/leader", lease=60.0):
        pipeline.driver().run(stop)
        stop.clear()
        pipeline.add(("a", "1", 0))
        pipeline.driver().run(stop)
    assert pipeline.kinds() == ["standing by", "standing by"]
    assert set(server.sets) == {b"pipelines/p/leader"}


def test_tokens_grow_with_each_batch(pipeline: Pipeline) -> None:
    """Each micro-batch has a newer token than the one before."""
    for index in range(3):
        pipeline.add(("a", "1", index))
    pipeline.run()
    tokens = [event.token for event in pipeline.events if event.kind == "writing"]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 3


def test_left_over_row_is_refused(pipeline: Pipeline, store: StateStoreClient) -> None:
    """What is left of an earlier batch cannot overwrite a later one, nor bring back what that deleted."""
    pipeline.add(("a", "1", 0), ("b", "1", 1))
    pipeline.add(("a", "2", 2), ("b", None, 3))
    pipeline.run()
    early = next(event.token for event in pipeline.events if event.kind == "writing")
    for key in ("a", "b"):
        with pytest.raises(FencingTokenTooOldError):
            store.set(key, "1", fencing_token=early)


def test_batch_of_one_that_leads_no_longer_is_refused(pipeline: Pipeline, store: StateStoreClient) -> None:
    """A lock that somebody else took in a batch: that changes neither rows nor the marker, and the driver stands by."""
    pipeline.add(("a", "1", 0))
    pipeline.add(("a", "2", 1))
    stop = threading.Event()
    other = store.lock("pipelines/p/leader", lease=60.0)

    def take_lock(event: PipelineEvent) -> None:
        if event.kind == "writing" and event.marker == Marker(0, 1):
            store.delete("pipelines/p/leader")
            token = other.acquire().fencing_token
            store.set("a", "the other's", fencing_token=token)
            store.set("pipelines/p/marker", Marker(0, 1).encode(), fencing_token=token)
        if event.kind == "lost":
            stop.set()

    pipeline.on_event = take_lock
    pipeline.driver().run(stop)
    # The driver hears of its refused batch, or of its lost lease before that: both end what it does.
    heard = [kind for kind in pipeline.kinds() if kind != "refused"]
    assert heard == ["standing by", "leading", "writing", "written", "writing", "lost"]
    assert all(event.keys == 1 for event in pipeline.events if event.kind == "refused")
    assert store.get("a").value == b"the other's"
    assert pipeline.marker(store) == Marker(0, 1)
    other.release()


def test_standby_takes_over_at_once_when_the_other_stops(pipeline: Pipeline, store: StateStoreClient) -> None:
    """A driver that is told to stop gives the election back: the one that waits leads before the term ends."""
    pipeline.add(("a", "1", 0))
    written, stop = threading.Event(), threading.Event()
    pipeline.on_event = lambda event: written.set() if event.kind == "written" else None
    with ThreadPoolExecutor() as threads:
        first = threads.submit(pipeline.driver(trigger=None, term=120.0).run, stop)
        assert written.wait(60)
        second = threads.submit(pipeline.driver(term=120.0).run)
        assert not second.done()
        pipeline.add(("b", "1", 1))
        stop.set()
        first.result(60)
        second.result(60)
    assert pipeline.marker(store) == Marker(1, 2)


def test_driver_without_a_store_can_be_stopped(spark: SparkSession, pipeline: Pipeline) -> None:
    """A driver that waits for its store ends when it is told to stop, also before it was ever connected."""
    url = f"mqtt://127.0.0.1:{reserved_port()}?request_timeout=0.2"
    failed, stop = threading.Event(), threading.Event()
    driver = ActiveStandby(
        spark,
        url,
        pipeline_id="p",
        source=pipeline.source,
        source_id="s",
        listener=lambda event: failed.set() if event.kind == "failed" else None,
    )
    with ThreadPoolExecutor() as threads:
        running = threads.submit(driver.run, stop)
        assert failed.wait(60)
        stop.set()
        running.result(30)


def test_forgotten_marker_begins_anew(pipeline: Pipeline, store: StateStoreClient, server: RecordingServer) -> None:
    """A store that has lost everything gets all rows again, from the beginning."""
    pipeline.add(("a", "1", 0))
    pipeline.add(("b", "1", 1))

    def forget(event: PipelineEvent) -> None:
        if event.kind == "writing" and event.marker == Marker(0, 1):
            pipeline.on_event = lambda _event: None
            server.restart(keep_state=False)

    pipeline.on_event = forget
    pipeline.run()
    assert {key: store.get(key).value for key in "ab"} == {"a": b"1", "b": b"1"}
    assert pipeline.marker(store) == Marker(1, 2)


def test_rows_out_of_order_are_refused(pipeline: Pipeline, store: StateStoreClient) -> None:
    """A source whose indexes go back is refused: behind the marker, its rows would be lost."""
    pipeline.add(("a", "1", 5))
    pipeline.add(("b", "1", 4), ("c", "1", 6))
    with pytest.raises(InvalidArgumentError, match="in the order of their indexes"):
        pipeline.run()
    assert pipeline.marker(store) == Marker(5, 1)


@pytest.mark.parametrize("index", [None, -1])
def test_rows_without_a_place_are_refused(pipeline: Pipeline, store: StateStoreClient, index: int | None) -> None:
    """An index that is null or negative says nothing about the place of its row."""
    pipeline.add(("a", "1", 0), ("b", "1", index))
    with pytest.raises(InvalidArgumentError, match="nulls or negative numbers"):
        pipeline.run()
    assert pipeline.marker(store) == Marker()


def test_null_key_ends_the_pipeline(pipeline: Pipeline) -> None:
    """A row without a key is not lost: the run ends with what is wrong, and after which index."""
    pipeline.add(("a", "1", 0))
    pipeline.add((None, "1", 1))
    with pytest.raises(InvalidArgumentError, match="has a null") as caught:
        pipeline.run()
    assert caught.value.__notes__ == ["in the micro-batch after the index 0 (pipelines/p/marker)"]


def test_key_of_somebody_else_ends_the_pipeline(pipeline: Pipeline, store: StateStoreClient) -> None:
    """A key with a newer token from outside is named as such, and not taken for a lost election."""
    pipeline.add(("a", "1", 0))

    def write_newer(event: PipelineEvent) -> None:
        if event.kind == "writing":
            with store.lock("another") as lease:
                store.set("a", "x", fencing_token=lease.fencing_token)

    pipeline.on_event = write_newer
    with pytest.raises(FencingTokenTooOldError, match="comes from elsewhere"):
        pipeline.run()


def test_marker_of_another_source_is_refused(pipeline: Pipeline) -> None:
    """Indexes of one log are not taken for those of another."""
    pipeline.add(("a", "1", 0))
    pipeline.run(source_id="log-1")
    with pytest.raises(SettingsError, match="'log-1', not to 'log-2'"):
        pipeline.run(source_id="log-2")


def test_query_with_state_is_refused(pipeline: Pipeline) -> None:
    """What Spark keeps in a checkpoint is lost at a take-over: such a query ends instead of being wrong."""
    pipeline.add(("a", "1", 0))

    def distinct(spark: SparkSession, after: int) -> DataFrame:
        return pipeline.source(spark, after).dropDuplicates(["key"])

    with pytest.raises(SettingsError, match="the query has state"):
        pipeline.run(source=distinct, trigger=None)


def test_errors_of_the_source_are_raised(pipeline: Pipeline) -> None:
    """What the user's function raises comes out, and the election is given back."""

    def broken(_spark: SparkSession, _after: int) -> DataFrame:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        pipeline.run(source=broken)
    pipeline.add(("a", "1", 0))
    pipeline.run(term=60.0)


def test_unusable_arguments_are_named(pipeline: Pipeline, spark: SparkSession, server: RecordingServer) -> None:
    """Every wrong argument is a SettingsError that says what to give."""
    good = (spark, server.url, "p", pipeline.source)
    with pytest.raises(SettingsError, match="SparkSession of this process"):
        ActiveStandby("spark", *good[1:])
    with pytest.raises(SettingsError, match="pipeline_id must be"):
        ActiveStandby(*good[:2], "a/b", good[3])
    with pytest.raises(SettingsError, match="source must be a function"):
        ActiveStandby(*good[:3], spark.range(1))
    with pytest.raises(SettingsError, match="unknown option ttl_column; known options of a pipeline: client_id_prefix"):
        ActiveStandby(*good, ttl_column="t")
    with pytest.raises(SettingsError, match="null_value must be error or delete"):
        ActiveStandby(*good, null_value="x")
    with pytest.raises(SettingsError, match="tombstone_ttl is for deletes"):
        ActiveStandby(*good, tombstone_ttl=5.0)
    with pytest.raises(SettingsError, match="a streaming DataFrame"):
        pipeline.run(source=lambda session, _after: session.range(1))
    with pytest.raises(SettingsError, match="no column 'position'"):
        pipeline.run(index_column="position")
    with pytest.raises(SettingsError, match=r"'value' \(index_column\) must be a whole number"):
        pipeline.run(index_column="value")
