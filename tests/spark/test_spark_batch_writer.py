"""An aggregation in the store: each micro-batch once, whatever becomes of the driver, and refused where values would be
missing."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aggregate_query import aggregate
from pyspark.errors import StreamingQueryException
from support.spark import kill_all

from statestore_client import StateStoreClient
from statestore_client.errors import BusyError, PickleRefusedError, SettingsError
from statestore_client.spark import BatchWriter, Marker
from statestore_client.spark.pipeline import pause_before_retry
from statestore_client.wire.commands import Set

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from recording_server import RecordingServer

pytestmark = [pytest.mark.spark, pytest.mark.classic]

KEYS = 40
MARKER = "pipelines/sums/marker"


class Aggregation:
    """Events in files, and the query that sums them up."""

    def __init__(self, spark: SparkSession, server: RecordingServer, folder: Path) -> None:
        self.spark, self.server, self.folder = spark, server, folder
        self.expected: dict[str, int] = {}
        self._files = 0
        (folder / "in").mkdir()

    def add(self, **events: int) -> None:
        """The events of one micro-batch."""
        file = self.folder / "in" / f"{self._files:03}.json"
        file.write_text("".join(json.dumps({"key": key, "n": n}) + "\n" for key, n in events.items()))
        os.utime(file, (1_000_000 + self._files,) * 2)  # Spark takes the oldest first
        self._files += 1
        for key, n in events.items():
            self.expected[key] = self.expected.get(key, 0) + n

    def run(self, **options: Any) -> None:
        aggregate(self.spark, self.server.url, self.folder, **options)

    def forget_last_commit(self) -> None:
        """What a driver leaves behind that was killed between its last write and Spark's note of it."""
        commits = self.folder / "checkpoint" / "commits"
        last = max((path for path in commits.glob("[0-9]*")), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)

    def state(self, store: StateStoreClient) -> dict[str, int]:
        keys = list(self.expected)
        return {key: int(item.value) for key, item in zip(keys, store.get_many(keys), strict=True) if item}

    def marker(self, store: StateStoreClient) -> tuple[int, int]:
        """The last batch, and how many rows were stored."""
        item = store.get(MARKER)
        assert item is not None
        marker = Marker.decode(item.value, MARKER)
        return marker.index, marker.rows


@pytest.fixture
def sums(spark: SparkSession, server: RecordingServer, tmp_path: Path) -> Aggregation:
    return Aggregation(spark, server, tmp_path)


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.timeout(400)  # a Java process of its own: 12 s, and several times that on a busy machine
def test_a_killed_driver_loses_and_repeats_nothing(sums: Aggregation, store: StateStoreClient) -> None:
    """A driver is killed with SIGKILL in the middle of the rows of its second batch. The next one, with its checkpoint,
    writes that batch again, and the sums are those of all events; no sum was ever another than one of a whole batch."""
    for batch in range(3):
        sums.add(**{f"k{key}": 10**batch for key in range(KEYS)})
    rows = 0

    def kill_in_second_batch(_count: int) -> None:
        nonlocal rows
        command = sums.server.requests[-1][1]
        if isinstance(command, Set) and command.key.startswith(b"k"):
            rows += 1
            if rows == KEYS + KEYS // 2:
                kill_all(driver.pid)

    sums.server.on_request = kill_in_second_batch
    source = str(Path(__file__).parent / "aggregate_query.py")
    with (
        store.watch("k0", initial=True) as seen,
        subprocess.Popen([sys.executable, source, sums.server.url, str(sums.folder)], start_new_session=True) as driver,
    ):
        assert driver.wait(240) == -signal.SIGKILL
        assert sums.marker(store) == (0, KEYS)
        assert set(sums.state(store).values()) == {1, 11}
        sums.run()
        assert sums.state(store) == sums.expected
        assert sums.marker(store) == (2, 3 * KEYS)
        values = [int(change.value) for change in iter(lambda: seen.get(0.0), None) if change.value is not None]
    assert values == sorted(values)
    assert set(values) == {1, 11, 111}


def test_a_stored_batch_is_not_written_again(sums: Aggregation, store: StateStoreClient) -> None:
    """A driver that was lost before Spark noted the end of its batch: the batch is stored, and not sent again."""
    sums.add(a=1, b=1)
    sums.run()
    sums.forget_last_commit()
    sums.add(a=5)
    sums.server.requests.clear()
    sums.run(mode="update")
    assert [key for key in sums.server.sets if not key.startswith(b"pipelines/")] == [b"a"]
    assert sums.state(store) == {"a": 6, "b": 1}
    assert sums.marker(store) == (1, 3)


def test_a_batch_without_its_marker_is_written_again(sums: Aggregation, store: StateStoreClient) -> None:
    """All rows of a batch are stored, and its marker is refused: the query ends, and the next run writes both."""
    sums.add(a=1, b=1)
    sums.server.allows = lambda command: not (isinstance(command, Set) and b'"index": 0' in command.value)
    with pytest.raises(StreamingQueryException, match="NotAuthorizedError"):
        sums.run()
    assert sums.state(store) == {"a": 1, "b": 1}
    assert sums.marker(store) == (-1, 0)
    sums.server.allows = lambda _command: True
    sums.add(a=5)
    sums.run()
    assert sums.state(store) == {"a": 6, "b": 1}
    assert sums.marker(store) == (1, 3)


def test_a_lost_checkpoint_is_refused(sums: Aggregation, store: StateStoreClient) -> None:
    """Without its checkpoint a query would count from zero: nothing is written, and the error says what to do."""
    sums.add(a=1)
    sums.run()
    (sums.folder / "checkpoint").rename(sums.folder / "lost")
    sums.add(a=5)
    with pytest.raises(
        StreamingQueryException, match="is of another query, or the checkpoint was lost: restore it, or"
    ):
        sums.run()
    assert sums.state(store) == {"a": 1}


def test_a_second_query_in_the_same_block_is_refused(
    spark: SparkSession, writer: BatchWriter, store: StateStoreClient
) -> None:
    """Its batches have the numbers of the first one's: batch 0 is not taken for the one that is stored."""
    try:
        for query, value in (("p", "1"), ("q", "2")):
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", query)
            batch = spark.createDataFrame([("k", value)], "key string, value string")
            if query == "p":
                writer(batch, 0)
            else:
                with pytest.raises(SettingsError, match="is of another query"):
                    writer(batch, 0)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]  # it ends so
    item = store.get("k")
    assert item is not None
    assert item.value == b"1"


def test_a_store_that_loses_its_data_ends_the_query(sums: Aggregation) -> None:
    """A server without a disk starts again in the middle of a batch: the sums of other groups are gone, which is an
    error, and not a store with half of the keys."""
    sums.add(a=1, b=1)
    sums.add(a=5)
    restarted = sums.server.restart_when(
        lambda command: isinstance(command, Set) and command.value == b"6", keep_state=False
    )
    with pytest.raises(StreamingQueryException, match="begin anew with another pipeline_id and an empty checkpoint"):
        sums.run()
    assert restarted.is_set()


def test_append_mode_writes_groups_that_have_ended(sums: Aggregation, store: StateStoreClient) -> None:
    """With a watermark and the output mode append, a group is written once, when it can change no more."""
    sums.add(a=10)
    sums.add(a=10)
    sums.add(b=20)
    sums.run(mode="append")
    item = store.get("a@10")
    assert item is not None
    assert item.value == b"20"
    assert sums.server.sets.count(b"a@10") == 1


def test_complete_mode_writes_all_groups(sums: Aggregation, store: StateStoreClient) -> None:
    """The output mode complete writes each group with each batch; the sums are the same."""
    sums.add(a=1, b=1)
    sums.add(a=5)
    sums.run(mode="complete")
    assert sums.state(store) == {"a": 6, "b": 1}
    assert sums.marker(store) == (1, 4)


# -- batches that are refused before Spark is needed ------------------------------------------------------------------


def _batch(query: str | None = "q") -> Any:
    """What the writer asks of a batch before it writes the rows."""
    return SimpleNamespace(
        sparkSession=SimpleNamespace(
            sparkContext=SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query}.get)
        )
    )


@pytest.fixture
def writer(server: RecordingServer) -> Iterator[BatchWriter]:
    with BatchWriter(server.url, "sums", retry_timeout=0.0) as entered:
        yield entered


@pytest.mark.parametrize(
    ("stored", "batch", "message"),
    [
        (
            None,
            3,
            "the store knows no batch of pipelines/sums/marker, and the checkpoint comes to batch 3: .*first_batch",
        ),
        (Marker(5, 9, "query q"), 4, "comes to batch 6 next, and the checkpoint to 4: .* put back to an older state"),
        (Marker(5, 9, "query q"), 7, "comes to batch 6 next, and the checkpoint to 7: .* put back to an older state"),
        (Marker(5, 9, "query p"), 6, "is of another query, or the checkpoint was lost"),
        (Marker(5, 9), 6, "is of another query, or the checkpoint was lost"),
    ],
)
def test_only_the_next_batch_is_written(
    writer: BatchWriter, store: StateStoreClient, stored: Marker | None, batch: int, message: str
) -> None:
    """A batch that is not the next, or of another query, is refused with what to do."""
    if stored is not None:
        store.set(MARKER, stored.encode())
    with pytest.raises(SettingsError, match=message):
        writer(_batch(), batch)


def test_a_pause_ends_where_a_test_has_stopped_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As freezegun does. It is a pause of the real world, as those of clients are."""
    monkeypatch.setattr("statestore_client.spark.pipeline._RETRY_S", 0.01)
    stopped = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: stopped)
    looks = iter(range(100))
    pause_before_retry(lambda: next(looks) == 99)
    assert next(looks) < 10


def test_misuse_is_refused(server: RecordingServer, writer: BatchWriter) -> None:
    """Outside of a with statement, outside of a query, in a pickle, and with unusable arguments."""
    with pytest.raises(BusyError, match="use the writer in a with statement"):
        BatchWriter(server.url, "other")(_batch(), 0)
    with pytest.raises(SettingsError, match="give the writer to foreachBatch"):
        writer(_batch(None), 0)
    with pytest.raises(PickleRefusedError, match="with Spark Connect it is elsewhere"):
        pickle.dumps(writer)
    for arguments, message in (
        ({"pipeline_id": "a/b"}, "pipeline_id must be a text without spaces"),
        ({"first_batch": -1}, "first_batch must be the number of a batch"),
        ({"version_column": "v"}, "unknown option version_column; known options of a pipeline: "),
    ):
        with pytest.raises(SettingsError, match=message):
            BatchWriter(**{"settings": server.url, "pipeline_id": "p", **arguments})  # type: ignore[arg-type]
