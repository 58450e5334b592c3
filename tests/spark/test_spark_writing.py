"""The write of a partition against a real server, without Spark around it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from recording_server import RecordingServer

from statestore_client import (
    ConnectionSettings,
    ConnectRefusedError,
    FencingTokenClockSkewError,
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    HlcTimestamp,
    InvalidArgumentError,
    NotAuthorizedError,
    StateStoreClient,
    StoreReplacedError,
    TransportError,
)
from statestore_client.server import EmbeddedServer
from statestore_client.spark.options import SinkOptions, WriteOptions
from statestore_client.spark.pool import ClientPool, PoolKey
from statestore_client.spark.report import WriteReport
from statestore_client.spark.rows import Rows
from statestore_client.spark.writing import Delivery, PartitionWrite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLD, NEW = HlcTimestamp(1000, 0, "lock"), HlcTimestamp(2000, 0, "lock")


@pytest.fixture
def pool() -> Iterator[ClientPool]:
    pool = ClientPool()
    yield pool
    pool.clear()


class Writer:
    """Writes (key, value) pairs or columns and reports."""

    def __init__(self, server: EmbeddedServer, pool: ClientPool) -> None:
        self._url = server.url
        self._pool = pool

    def __call__(self, keys: list[Any], values: list[Any] | None = None, **options: Any) -> WriteReport:
        columns = {name: options.pop(name, None) for name in ("ttls", "versions")}
        sleep = options.pop("sleep", time.sleep)
        key = PoolKey(ConnectionSettings.from_url(self._url, request_timeout=options.pop("request_timeout", 15.0)))
        delivery = Delivery(key, retry_timeout_s=options.get("retry_timeout", 20.0), pool=self._pool, sleep=sleep)
        kind = options.pop("kind", WriteOptions)
        write = PartitionWrite(delivery, kind(**options))
        write.write(Rows(keys, values, **columns))
        return write.report


@pytest.fixture
def write(server: RecordingServer, pool: ClientPool) -> Writer:
    return Writer(server, pool)


def value(store: StateStoreClient, key: str) -> bytes | None:
    item = store.get(key)
    return None if item is None else item.value


def test_rows_are_written_and_counted(write: Writer, store: StateStoreClient) -> None:
    """Each written row is counted by its outcome."""
    assert write(["a", b"b"], ["1", b"\x00"]) == WriteReport(written=2)
    assert (value(store, "a"), value(store, "b")) == (b"1", b"\x00")


def test_deletes_count_what_was_there(write: Writer, store: StateStoreClient) -> None:
    """Deleting a missing key, or one whose value changed, counts as not applied."""
    store.set_many([("a", "1"), ("b", "2"), ("c", "3")])
    assert write(["a", "none"], operation="delete") == WriteReport(written=1, not_applied=1)
    assert write(["b", "c"], ["2", "changed"], operation="vdelete") == WriteReport(written=1, not_applied=1)
    assert sorted(store.scan("*")) == [b"c"]


def test_both_questions_of_a_vdelete_are_asked(write: Writer, store: StateStoreClient) -> None:
    """Two values for one key in a vdelete are two requests."""
    store.set("a", "2")
    assert write(["a", "a"], ["1", "2"], operation="vdelete") == WriteReport(written=1, not_applied=1)


def test_expiry_of_a_row(write: Writer, store: StateStoreClient) -> None:
    """A row's seconds are the expiry of its key, and null means none."""
    write(["short", "long"], ["1", "2"], ttl_column="ttl", ttls=[0.05, None])
    with store.watch("short") as events:
        event = events.get(5.0) if value(store, "short") is not None else None
    assert value(store, "short") is None, event
    assert value(store, "long") == b"2"


def test_stale_token_stops_after_one_row(write: Writer, server: RecordingServer, store: StateStoreClient) -> None:
    """A writer that lost its lock stops after one row."""
    store.set("k0", "new", fencing_token=NEW)
    before = len(server.sets)
    report = write([f"k{i}" for i in range(5000)], ["old"] * 5000, fencing_token=OLD)
    assert isinstance(report.error, FencingTokenTooOldError)
    assert (report.rejected, report.written) == (1, 0)
    assert len(server.sets) - before == 1
    with pytest.raises(FencingTokenTooOldError):
        report.raise_for_error()


def test_stale_token_stops_in_the_middle(write: Writer, server: RecordingServer, store: StateStoreClient) -> None:
    """When the lock is lost during a write, the batch in flight is the last."""
    store.set("k1500", "new", fencing_token=NEW)
    report = write([f"k{i}" for i in range(9000)], ["old"] * 9000, fencing_token=OLD)
    assert report.rejected == 1
    assert report.rows == 1 + 4096
    assert value(store, "k1500") == b"new"


def test_continue_counts_refusals(write: Writer, store: StateStoreClient) -> None:
    """With errorMode=continue unusable and protected rows are counted, and the others are written."""
    store.set("b", "new", fencing_token=NEW)
    report = write(["a", "b", None, "c"], ["1", "2", "3", "4"], error_mode="continue")
    assert (report.written, report.rejected) == (2, 2)
    assert isinstance(report.rejection, (FencingTokenRequiredError, InvalidArgumentError))
    assert report.raise_for_error() is report
    assert value(store, "b") == b"new"


@pytest.mark.parametrize(
    ("kind", "names"),
    [(WriteOptions, "version_column or fencing_token"), (SinkOptions, "versionColumn or fencingToken")],
)
@pytest.mark.parametrize("error_mode", ["fail", "continue"])
def test_a_key_that_had_versions_says_what_it_needs(
    write: Writer, kind: type[WriteOptions], names: str, error_mode: str
) -> None:
    """A key that was written with versions refuses a write without; the error says that, and what to give."""
    write(["pump-7"], ["1"], version_column="v", versions=[1])
    report = write(["pump-7"], ["2"], kind=kind, error_mode=error_mode)
    error = report.rejection if error_mode == "continue" else report.error
    assert isinstance(error, FencingTokenRequiredError)
    assert (error.command, error.key) == ("SET", b"pump-7")
    assert str(error) == (
        "a fencing token is required for this request: an earlier write gave the key a version or a lock's token, and "
        f"so each write of it needs {names} from then on (SET of 'pump-7')"
    )


def test_continue_counts_versions_of_the_future(write: Writer, store: StateStoreClient) -> None:
    """With errorMode=continue a version from the future is counted as an error of its row."""
    versions = [datetime(2013, 6, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)]
    report = write(["a", "b"], ["1", "2"], version_column="v", versions=versions, error_mode="continue")
    assert (report.written, report.rejected, report.error) == (1, 1, None)
    assert isinstance(report.rejection, FencingTokenClockSkewError)


@pytest.mark.parametrize("error_mode", ["fail", "continue"])
def test_whole_numbers_that_never_win_are_errors(write: Writer, store: StateStoreClient, error_mode: str) -> None:
    """A key that was written under a lock takes no whole number as its version, ever: its row is refused with what to
    do, whatever becomes of the others; a row that has a newer one in the store is merely not applied."""
    with store.lock("job") as lease:
        store.set("sealed", "locked", fencing_token=lease.fencing_token)
    write(["newer"], ["9"], version_column="v", versions=[9])
    columns: dict[str, Any] = {"version_column": "v", "versions": [4, 8, 2**63 - 1], "error_mode": error_mode}
    report = write(["new", "newer", "sealed"], ["4", "8", "5"], **columns)
    error = report.rejection if error_mode == "continue" else report.error
    assert (report.written, report.not_applied, report.rejected) == (1, 1, 1)
    assert isinstance(error, FencingTokenTooOldError)
    assert (error.command, error.key) == ("SET", b"sealed")
    assert str(error) == (
        "the column 'v' has 9223372036854775807, a whole number, and the key was once written under a lock's fencing "
        "token, or with a timestamp as its version, which is newer than all whole numbers; delete the key first, or "
        "give timestamps as versions (SET of 'sealed')"
    )
    assert [value(store, key) for key in ("new", "newer", "sealed")] == [b"4", b"9", b"locked"]


def test_old_rows_alone_are_a_warning(write: Writer, store: StateStoreClient, caplog: pytest.LogCaptureFixture) -> None:
    """A write that changed nothing, because there are newer rows, is right and worth a warning."""
    write(["a"], ["9"], version_column="v", versions=[9])
    options = WriteOptions(version_column="v")
    write(["a"], ["8"], version_column="v", versions=[8]).log("the store", options)
    assert "none of 1 rows changed the state store at the store: it has newer versions in 'v'" in caplog.text


def test_a_stale_token_fails_the_job_also_with_continue(
    write: Writer, server: RecordingServer, store: StateStoreClient
) -> None:
    """A stale token fails the job also with errorMode=continue, and its other rows are not sent."""
    store.set("k0", "new", fencing_token=NEW)
    report = write([f"k{i}" for i in range(100)], ["old"] * 100, fencing_token=OLD, error_mode="continue")
    with pytest.raises(FencingTokenTooOldError):
        report.raise_for_error()
    assert (report.written, len(server.sets)) == (0, 2)


def test_missing_rights_fail_the_job_also_with_continue(pool: ClientPool) -> None:
    """Missing rights fail the job also with errorMode=continue, because no other row would do better."""
    with EmbeddedServer(authorize=lambda _client, _command: False) as server:
        report = Writer(server, pool)(["a"] * 5, ["1"] * 5, error_mode="continue")
    with pytest.raises(NotAuthorizedError):
        report.raise_for_error()


def test_null_key_ends_the_write(write: Writer, store: StateStoreClient) -> None:
    """Rows before one with a null key are written, and the error names the column and the row."""
    report = write(["a", None, "c"], ["1", "2", "3"])
    assert (report.written, report.rejected) == (1, 1)
    assert str(report.error) == "the column 'key' has a null (row 2 of its partition)"
    assert value(store, "c") is None


@pytest.mark.parametrize("at", [1, 2, 4096, 4097, 9000])
def test_repeated_key_is_an_error(write: Writer, at: int) -> None:
    """A repeated key among rows in key order is an error, within a batch and across two, and the message says what to
    do."""
    keys = sorted([*(f"k{i:05}" for i in range(9001)), f"k{at:05}"])
    report = write(keys, ["1"] * len(keys), duplicate_keys="error")
    assert str(report.error).startswith(f"the column 'key' has the key b'k{at:05}' twice, and nothing tells")
    assert "order_by" in str(report.error)


def test_sorted_keys_without_repetition_are_written(write: Writer) -> None:
    """Rows in key order without repetition are written, also across batches."""
    keys = [f"k{i:05}" for i in range(9000)]
    assert write(keys, ["1"] * len(keys), duplicate_keys="error") == WriteReport(written=9000)


def test_last_of_repeated_keys_wins(write: Writer, server: RecordingServer, store: StateStoreClient) -> None:
    """duplicateKeys=last keeps a partition's order across batches, and skips rows that are overwritten anyway."""
    keys = [f"k{i % 700}" for i in range(3000)]
    report = write(keys, [str(i) for i in range(3000)], duplicate_keys="last")
    assert report.rows == 3000
    assert len(server.sets) == report.written < 3000
    assert [value(store, f"k{i}") for i in (0, 699)] == [b"2800", b"2799"]


def test_older_version_does_not_win(write: Writer, store: StateStoreClient) -> None:
    """An older version does not overwrite a newer one, because the state store compares them at each write."""
    assert write(["a", "b"], ["a7", "b7"], version_column="v", versions=[7, 7]).written == 2
    assert write(["a", "b"], ["a6", "b8"], version_column="v", versions=[6, 8]) == WriteReport(written=1, not_applied=1)
    assert (value(store, "a"), value(store, "b")) == (b"a7", b"b8")


def test_newest_version_of_a_partition_is_written(write: Writer, store: StateStoreClient) -> None:
    """With versions the newest row of a key in the partition is written, in any order of rows."""
    report = write(["a", "a", "a"], ["5", "9", "7"], version_column="v", versions=[5, 9, 7])
    assert report.rows == 3
    assert value(store, "a") == b"9"


def test_same_version_may_be_written_again(write: Writer) -> None:
    """A row with the stored version is written again, as a repeated task does."""
    for _ in range(2):
        assert write(["a"], ["1"], version_column="v", versions=[1]) == WriteReport(written=1)


def test_version_from_the_far_future_is_refused(write: Writer, store: StateStoreClient) -> None:
    """A version from the far future is refused, so that a device with a wrong clock cannot lock its key."""
    report = write(["a"], ["1"], version_column="v", versions=[datetime(2100, 1, 1, 12, 30, 0, 250, tzinfo=UTC)])
    assert isinstance(report.error, FencingTokenClockSkewError)
    assert str(report.error) == (
        "the column 'v' has 2100-01-01 12:30:00.000250+00:00, more than a minute ahead of the state store's clock; "
        "until then it would keep other rows out (SET of 'a')"
    )
    assert value(store, "a") is None


def test_unanswered_rows_are_sent_again(write: Writer, server: RecordingServer, store: StateStoreClient) -> None:
    """The server stops answering until the writer has given up on the rows in flight: they are sent once more.

    On a busy machine a repetition may be too slow as well, and is repeated, too.
    """
    retrying = threading.Event()
    attempts: list[float] = []

    def sleep(seconds: float) -> None:
        attempts.append(seconds)
        retrying.set()

    def freeze(count: int) -> None:
        if count == 500:
            retrying.clear()  # on a busy machine it may have been slow to connect, too
            assert retrying.wait(30.0)

    server.on_request = freeze
    report = write([f"k{i}" for i in range(2000)], ["v"] * 2000, request_timeout=1.0, sleep=sleep)
    assert (report.written, report.error) == (2000, None)
    assert 0 < report.resent <= 128 * len(attempts)  # no more than what was in flight
    assert len(list(store.scan("k*"))) == 2000


def test_restarted_server_is_found_again(pool: ClientPool, tmp_path: Path) -> None:
    """When the server restarts from its disk in the middle, all rows are written in the same attempt."""
    with RecordingServer(data=tmp_path) as server, StateStoreClient(server.url) as store:
        restarted = server.restart_at(1000, keep_state=True)
        report = Writer(server, pool)([f"k{i}" for i in range(3000)], ["v"] * 3000)
        assert restarted.is_set()
        assert (report.written, report.error) == (3000, None)
        assert len(list(store.scan("k*"))) == 3000


@pytest.mark.parametrize("error_mode", ["fail", "continue"])
def test_a_server_that_restarts_empty_fails_the_write(write: Writer, server: RecordingServer, error_mode: str) -> None:
    """When it restarts empty in the middle, the write has failed, whatever errorMode says about rows."""
    restarted = server.restart_at(1000, keep_state=False)
    report = write([f"k{i}" for i in range(3000)], ["v"] * 3000, error_mode=error_mode)
    assert restarted.is_set()
    with pytest.raises(StoreReplacedError, match="rows written before are missing"):
        report.raise_for_error()
    assert report.rows == 3000


def test_gives_up_without_progress(write: Writer, server: RecordingServer) -> None:
    """When the server stays away, the task fails after retryTimeout, not after a time-out per row."""
    done = threading.Event()

    def stop(count: int) -> None:
        if count == 100:
            threading.Thread(target=lambda: (server.stop(), done.set())).start()

    server.on_request = stop
    with pytest.raises(TransportError):
        write([f"k{i}" for i in range(5000)], ["v"] * 5000, retry_timeout=0.5)
    assert done.wait(5.0)


@pytest.mark.parametrize("error_mode", ["fail", "continue"])
def test_wrong_credentials_are_not_retried(pool: ClientPool, error_mode: str) -> None:
    """Wrong credentials fail the job without a repetition, whatever errorMode says about rows."""
    with EmbeddedServer(faults=True) as server:
        refusal = server.faults.refuse("CONNECT", 0x86, times=None)
        report = Writer(server, pool)(["a"], ["1"], error_mode=error_mode)
    assert refusal.hits == 1
    with pytest.raises(ConnectRefusedError):
        report.raise_for_error()


@pytest.mark.parametrize("reason_code", [0x88, 0x89, 0x97, 0x9F])
def test_a_broker_that_is_full_is_asked_again(pool: ClientPool, reason_code: int) -> None:
    """A broker that is unavailable, busy, out of quota or too fast is tried again within the same attempt."""
    with EmbeddedServer(faults=True) as server:
        server.faults.refuse("CONNECT", reason_code, times=3)
        report = Writer(server, pool)(["a", "b"], ["1", "2"], sleep=lambda _s: None)
    assert report == WriteReport(written=2)


@pytest.mark.parametrize("reason_code", [0x88, 0x89, 0x97, 0x9F])
def test_a_broker_that_stays_full_fails_the_task(pool: ClientPool, reason_code: int) -> None:
    """A broker that stays full fails the task after retryTimeout, with an error on which Spark makes another
    attempt."""
    with EmbeddedServer(faults=True) as server:
        server.faults.refuse("CONNECT", reason_code, times=None)
        with pytest.raises(ConnectRefusedError) as refused:
            Writer(server, pool)(["a"], ["1"], retry_timeout=0.2)
    assert (refused.value.reason_code, refused.value.fatal) == (reason_code, False)


def test_reports_add_up() -> None:
    """Adding up reports keeps the first error and sums the counts."""
    error = FencingTokenTooOldError()
    total = WriteReport(1, 2, 3, 4) + WriteReport(10, 20, 30, 40, error)
    assert total == WriteReport(11, 22, 33, 44, error)
    assert total.rows == 66
