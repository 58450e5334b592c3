"""The sink without Spark: its tasks and its driver, as Spark runs, repeats and loses them, and a real cluster."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import attrs
import pytest
from support.raft_peers import next_leader
from support.schedules import scaled
from written_rows import markers_of, rows_of

pytest.importorskip("pyarrow")

import pyarrow as pa

from raft_client import PipelineError, RaftClient, RaftSettings, RequestExpiredError, RequestId
from raft_client.server import EmbeddedCluster
from raft_client.server.runtime.storage.disk_log import Fsync
from raft_client.spark.appending import Batch, Written, append_rows, commit_batch, find_state
from raft_client.spark.options import WriteOptions

pytestmark = pytest.mark.scaled

SEEDS = scaled(5, 200)
BATCHES, ROWS = 4, 120
PROBE = b"is this second still taken?"
INDEXED = WriteOptions(pipeline_id="p", index_column="index")


class TaskLostError(Exception):
    """A task that ends in the middle, as a worker does that is killed."""


def table(indexes: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"index": list(indexes), "data": [b"%d" % index for index in indexes]})


def in_pieces(indexes: Sequence[int], lost_after: int | None = None, size: int = 10) -> Iterator[pa.RecordBatch]:
    """What a task gets from Spark, until it is lost."""
    for start in range(0, len(indexes), size):
        if lost_after is not None and start >= lost_after:
            raise TaskLostError
        yield table(indexes[start : start + size])
    if lost_after is not None:
        raise TaskLostError


@attrs.define
class Driver:
    """A driver, as far as the sink sees it: it repeats tasks, it is lost, and the next one repeats the batch.

    Each one cuts the batch into other partitions, and tasks of lost drivers go on beside the next one's.
    """

    settings: RaftSettings
    chance: random.Random
    pool: ThreadPoolExecutor
    leader: Callable[[], None]
    zombies: list[object] = attrs.Factory(list)

    def run(self, query: str = "q") -> None:
        for number in range(BATCHES):
            while not self.attempt(query, number):
                pass
            if self.chance.random() < 0.3:  # the last entry of Spark's commit log is lost
                assert all(written.seconds is None for written in self.tasks(query, number, lost=False))

    def attempt(self, query: str, number: int) -> bool:
        """Whether this driver lived until Spark's own commit."""
        if self.chance.random() < 0.2:
            self.leader()
        lost = self.chance.random() < 0.4
        done = self.tasks(query, number, lost=lost)
        if lost:
            return False
        commit_batch(self.settings, done)
        return self.chance.random() < 0.8

    def tasks(self, query: str, number: int, *, lost: bool) -> list[Written]:
        batch = Batch("p", query, number, int(time.time()) + self.chance.randrange(60))
        rows = range(number * ROWS + 1, (number + 1) * ROWS + 1)
        cuts = sorted(self.chance.sample(range(1, ROWS), self.chance.randrange(4)))
        parts = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, ROWS], strict=True)]
        running = [self.pool.submit(self.task, batch, part, self.chance.randrange(4)) for part in parts]
        if lost:
            self.zombies += running[1:]
            return [running[0].result()]
        return [each.result() for each in running]

    def task(self, batch: Batch, part: Sequence[int], failures: int) -> Written:
        for _ in range(failures):
            with contextlib.suppress(TaskLostError):
                append_rows(self.settings, INDEXED, batch, in_pieces(part, lost_after=len(part) // 2))
        return append_rows(self.settings, INDEXED, batch, in_pieces(part))


def test_nothing_is_lost_or_doubled(figures: Callable[[str], None]) -> None:
    """Tasks that are lost and repeated, drivers that are lost before and after the commit, tasks of lost drivers that
    go on, other partitions each time, commits that Spark forgot, and leaders that are killed: each row is there once.
    """
    lost = doubled = attempts = 0
    for seed in range(SEEDS):
        with (
            EmbeddedCluster(3, fsync=Fsync.OFF) as cluster,
            ThreadPoolExecutor(8) as pool,
            RaftClient(cluster.url) as log,
        ):
            chance = random.Random(seed)
            driver = Driver(RaftSettings(seeds=cluster.url), chance, pool, partial(next_leader, cluster))
            driver.run()
            pool.shutdown(wait=True)
            found = Counter(rows_of(log))
            lost += sum(b"%d" % n not in found for n in range(1, BATCHES * ROWS + 1))
            doubled += sum(found.values()) - len(found)
            attempts += len(driver.zombies)
            commits = [batch for kind, batch in markers_of(log) if kind == "commit"]
            assert commits == list(range(BATCHES)), f"seed {seed}"
        assert (lost, doubled) == (0, 0), f"seed {seed}"
    figures(f"{SEEDS} seeds, {SEEDS * BATCHES * ROWS} rows, {attempts} tasks of lost drivers: 0 lost, 0 doubled")


def write(settings: RaftSettings, batch: Batch, rows: Sequence[int]) -> Written:
    return append_rows(settings, INDEXED, batch, in_pieces(rows))


def test_a_batch_that_is_older_than_the_window_is_completed() -> None:
    """Ids of a half-done batch expire, and its repetition appends the rows that are missing, under other ids. It can
    itself be repeated, and a late task of the first attempt appends nothing."""
    window_s = 5
    with (
        EmbeddedCluster(1, fsync=Fsync.OFF, settings={"request_id_ttl_s": 900.0 + window_s}) as cluster,
        RaftClient(cluster.url) as log,
    ):
        settings = RaftSettings(seeds=cluster.url)
        first = Batch("p", "q", 0, int(time.time()))
        assert write(settings, first, range(1, 31)).error is None
        wait_until_expired(log, first.now_s)
        second = write(settings, Batch("p", "q", 0, int(time.time())), range(21, 61))
        assert second.error is None
        assert second.seconds not in (None, first.now_s)
        late = write(settings, first, range(1, 61))
        assert late.seconds not in (None, first.now_s), "it learned what counts now"
        third = write(settings, Batch("p", "q", 0, int(time.time())), range(1, 61))
        commit_batch(settings, [third])
        assert rows_but_probes(log) == list(range(1, 61))
        assert markers_of(log)[-1] == ("commit", 0)
        wait_until_expired(log, third.seconds or 0)
        assert write(settings, Batch("p", "q", 0, int(time.time())), range(1, 61)).seconds is None
        fourth = write(settings, Batch("p", "q", 1, int(time.time())), range(61, 71))
        wait_until_expired(log, fourth.seconds or 0)
        commit_batch(settings, [fourth])
        assert rows_but_probes(log) == list(range(1, 71))
        assert find_state(log, "p").committed == 1


def rows_but_probes(log: RaftClient) -> list[int]:
    return sorted(int(row) for row in rows_of(log) if row != PROBE)


def wait_until_expired(log: RaftClient, seconds: int) -> None:
    """Until the cluster refuses ids of this second."""
    n = 0
    while True:
        try:
            log.append(PROBE, RequestId.derive("waiting", n, seconds=seconds))
        except RequestExpiredError:
            return
        n += 1
        time.sleep(0.1)


def test_a_clock_that_is_wrong_is_an_error(log: RaftClient) -> None:
    """A driver whose clock is nine hours late appends nothing, and its commit says why."""
    settings = log.settings
    written = write(settings, Batch("p", "q", 0, int(time.time()) - 9 * 3600), range(1, 4))
    assert isinstance(written.error, RequestExpiredError)
    with pytest.raises(RequestExpiredError):
        commit_batch(settings, [written])
    assert rows_of(log) == markers_of(log) == []


def test_another_query_is_refused(log: RaftClient) -> None:
    """Of two queries that begin a pipeline at the same time, one goes on, and the other one appends no row."""
    settings = log.settings
    with ThreadPoolExecutor(2) as pool:
        batches = [Batch("p", query, 0, int(time.time())) for query in ("q1", "q2")]
        done = list(pool.map(lambda batch: write(settings, batch, range(1, 51)), batches))
    [refused] = [written.error for written in done if written.error is not None]
    assert isinstance(refused, PipelineError)
    assert sorted(map(int, rows_of(log))) == list(range(1, 51))


def test_the_last_marker_is_found_far_back(log: RaftClient) -> None:
    """The last marker is found behind many entries of others, and that of another pipeline is not taken for it."""
    settings = log.settings
    commit_batch(settings, [write(settings, Batch("p", "q", 0, int(time.time())), range(1, 11))])
    log.append_many(b"%d" % n for n in range(11, 3000))
    commit_batch(settings, [write(settings, Batch("p2", "q", 0, int(time.time())), range(3000, 3011))])
    state = find_state(log, "p")
    assert (state.query, state.committed, state.source_index, state.attempt) == ("q", 0, 10, None)
    assert find_state(log, "p3").query is None


def test_a_batch_without_rows_leaves_the_source_where_it_was(log: RaftClient) -> None:
    """Otherwise nobody could say where another query is to begin, when the checkpoint is lost after it."""
    for number, rows in enumerate((range(1, 11), range(0), range(0), range(11, 21))):
        assert commit_batch(log.settings, [write(log.settings, Batch("p", "q", number, int(time.time())), rows)])
        assert find_state(log, "p").source_index == (20 if number == 3 else 10)
    assert not commit_batch(log.settings, [write(log.settings, Batch("p", "q", 3, int(time.time())), range(11, 21))])
