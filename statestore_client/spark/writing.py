"""The write of one partition, the same for the sink, the partition writer and ``write_rows``.

**Processes.** Spark keeps its Python processes from task to task, also those that plan and commit writes, and has them
call ``gc.collect()`` after each task (``pyspark/daemon.py``). There is hardly any garbage: the collector looks through
the objects of the imported modules. With PySpark, PyArrow and pandas that takes 40 ms of a core, four times for each
micro-batch: longer than a thousand rows take to be written.

**Batches** of requests are pipelined, and survive a lost connection. Rules:

* Requests whose connection failed are sent again, in their order, before any that come after them in the same batch.
  All commands that go this way may be repeated: they leave the same state.
* It gives up when nothing at all got through for ``retry_timeout_s``, and at once when trying again cannot help. No
  attempt lasts longer than what is left of this time: a broker that says nothing costs as much as one that refuses.
* A client that has failed requests gets no more of them: each would wait for its own time-out.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from socket import gethostname
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack, cast

import attrs

from statestore_client import ConnectionSettings, ConnectionState, DeleteResult, HlcTimestamp, SetItem, SetResult
from statestore_client.clocks import monotonic
from statestore_client.errors import (
    BatchError,
    ClosedError,
    ConnectionLostError,
    FencingTokenClockSkewError,
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    InvalidArgumentError,
    RequestTimeoutError,
    SettingsError,
    StateStoreError,
    TransportError,
)
from statestore_client.spark.options import (
    Operation,
    PartitionOptions,
    WriteOptions,
    connection,
    refuse_whole_job_options,
)
from statestore_client.spark.pool import POOL, ClientPool, PoolKey, application_id
from statestore_client.spark.report import ReportSink, WriteReport
from statestore_client.spark.rows import GREATEST_WHOLE, Request, Rows, requests, row_rows, version_text

if TYPE_CHECKING:
    from statestore_client.sync.client import StateStoreClient

#: The attempts of tasks that this process has begun, until it has begun two.
_begun: Final[set[int]] = set()


def is_reused() -> bool:
    """Whether this is a process of Spark that will get another task (``spark.python.worker.reuse``)."""
    return bool(os.environ.get("SPARK_REUSE_WORKER"))


def begin_task() -> None:
    """Keep what was imported out of all later collections. Call it first in each task, planning and commit; in a task,
    more than once does no harm.

    Once for each process, when its second task begins: all that a task needs is imported by then (pandas comes with the
    last line of the first one), and Spark has just collected the garbage. Reference counts free objects as before; only
    what is there at this moment and part of a cycle, the pooled client for one, stays until the process ends.
    """
    if len(_begun) == 2 or not is_reused():
        return
    from pyspark import TaskContext

    context = TaskContext.get()  # None where Spark plans and commits
    _begun.add(-1 - len(_begun) if context is None else context.taskAttemptId())
    if len(_begun) == 2:
        gc.freeze()


#: Sends a batch: ``StateStoreClient.set_many`` or one of its siblings. The number is the time-out of each request (s).
Send: TypeAlias = "Callable[[StateStoreClient, Iterable[Any], float], Sequence[object]]"

#: ClosedError: the pooled client failed for good before this request left.
_CONNECTION_ERRORS: Final = (TransportError, ClosedError)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
#: With less time than this left, there is no use in another attempt.
_SHORTEST_ATTEMPT_S: Final = 0.05


class Delivery:
    """Sends batches with the pooled client. One per task; not thread-safe. ``what`` names the requests in errors."""

    def __init__(
        self,
        key: PoolKey,
        *,
        retry_timeout_s: float,
        what: str = "requests",
        pool: ClientPool | None = None,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._key = key
        self._retry_timeout_s = retry_timeout_s
        self._what = what
        self._pool = POOL if pool is None else pool
        self._clock = clock
        self._sleep = sleep
        self._moved_at = 0.0  # when the last request could leave, because another one had its answer
        #: Requests that were sent more than once.
        self.resent: int = 0

    def deliver(self, requests: Sequence[Any], send: Send) -> list[object]:
        """One result or error for each request, in order; no error is about the connection.

        Raises a :class:`TransportError` when it gives up, which says after how long and how many attempts, or a
        ``fatal`` one at once. Some requests may have been carried out by then.
        """
        outcomes: list[object] = [None] * len(requests)
        pending: Sequence[int] = range(len(requests))
        trouble = RetryState(self._clock())
        while pending:
            left_s = self._left_s(trouble)
            done, failed, error = self._attempt(pending, requests, outcomes, send, left_s)
            pending = pending[done + failed :] if not failed else self._again(pending, outcomes, done + failed)
            if error is None:
                trouble = RetryState(self._clock())
                continue
            if done:
                trouble = RetryState(self._moved_at)
            if isinstance(error, TransportError) and error.fatal:
                raise error
            trouble.add(error)
            left_s = self._left_s(trouble)
            if left_s <= _SHORTEST_ATTEMPT_S:
                raise trouble.error(self._clock(), f"{self._what} to {self._key.settings.url}")
            self.resent += failed
            self._sleep(trouble.pause_s(left_s))
        return outcomes

    def _left_s(self, trouble: RetryState) -> float:
        return trouble.since + self._retry_timeout_s - self._clock()

    def _attempt(
        self, pending: Sequence[int], requests: Sequence[Any], outcomes: list[object], send: Send, left_s: float
    ) -> tuple[int, int, StateStoreError | None]:
        """Send what is pending. How many have an outcome, how many lost their connection, and the last such error."""
        settings = self._key.settings
        # No time at all is for one attempt, which takes what it takes.
        limit_s = max(round(left_s, 2), 0.0) or settings.connect_timeout + settings.request_timeout
        until = self._clock() + limit_s
        try:
            with self._pool.borrow(self._key, limit_s) as loan:
                timeout_s = min(settings.request_timeout, max(until - self._clock(), _SHORTEST_ATTEMPT_S))
                results = self._results(loan.client, map(requests.__getitem__, pending), send, timeout_s)
                for position, result in zip(pending, results, strict=False):
                    outcomes[position] = result
                lost = [result for result in results if isinstance(result, _CONNECTION_ERRORS)]
                if lost:
                    loan.spoil()
        except _CONNECTION_ERRORS as connecting:
            return 0, 0, connecting
        return len(results) - len(lost), len(lost), lost[-1] if lost else None

    def _results(
        self, client: StateStoreClient, requests: Iterator[Any], send: Send, timeout_s: float
    ) -> Sequence[object]:
        """The results of as many requests as the client could take without trouble; at least of one."""
        try:
            return send(client, self._while_healthy(client, requests), timeout_s)
        except BatchError as error:
            return error.results

    def _while_healthy(self, client: StateStoreClient, requests: Iterator[Any]) -> Iterator[Any]:
        stats = client.stats
        timeouts = stats.timeouts
        for request in requests:
            self._moved_at = self._clock()
            yield request
            if stats.timeouts != timeouts or client.state is not ConnectionState.CONNECTED:
                return

    def _again(self, pending: Sequence[int], outcomes: list[object], sent: int) -> list[int]:
        lost = [i for i in pending[:sent] if isinstance(outcomes[i], _CONNECTION_ERRORS)]
        return [*lost, *pending[sent:]]


class RetryState:
    """The attempts since something last got through."""

    def __init__(self, since: float) -> None:
        self.since = since
        self._attempts = 0
        self._reason: StateStoreError | None = None
        self._applied = False

    def add(self, error: StateStoreError) -> None:
        """An attempt failed. A time-out says less than what came before it: the last one ends because time is up."""
        self._attempts += 1
        self._applied = self._applied or error.may_have_been_applied
        if self._reason is None or not isinstance(error, RequestTimeoutError):
            self._reason = error

    def pause_s(self, left_s: float) -> float:
        """How long to wait before the next attempt: doubled each time, and never so long that none is left."""
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self._attempts - 1, 10), _LONGEST_PAUSE_S)
        return min(pause_s * (0.5 + random.random() / 2), left_s / 2)  # noqa: S311 - jitter

    def error(self, now: float, what: str) -> TransportError:
        """The reason, with what was tried and for how long."""
        assert self._reason is not None  # noqa: S101 - something was added
        counted = "1 attempt" if self._attempts == 1 else f"{self._attempts} attempts"
        text = f"gave up after {now - self.since:.1f} s and {counted} to send {what}: {self._reason}"
        given_up = copy.copy(self._reason) if isinstance(self._reason, TransportError) else ConnectionLostError()
        given_up.args = (text,)
        given_up.may_have_been_applied = self._applied
        return given_up


#: Requests per pipelined batch: a refusal ends the write after at most this many. At its end nothing is in flight.
_BATCH: Final = 4096
_KEY_OF_PAIR: Final = itemgetter(0)
#: Writes that tasks of this process have given up, by their ids, and why; only the latest few.
_given_up: Final[dict[str, StateStoreError]] = {}
_MOST_GIVEN_UP: Final = 16
_Error = TypeVar("_Error", bound=StateStoreError)


class PartitionWrite:
    """Writes the rows of one partition, in order, and counts.

    Invariant: a batch sets no key twice, and every request of a batch has its outcome before the next batch starts. So
    a request that is sent again cannot overtake a newer one of the same key.

    With ``duplicate_keys="error"`` the rows must come in the order of their keys: equal ones are neighbours then, and
    one key is all that has to be remembered.
    """

    def __init__(self, delivery: Delivery, options: WriteOptions, partition: int | None = None) -> None:
        self._delivery = delivery
        self._options = options
        self._sends = _sends(options)
        self._row_errors = _row_errors(options)
        self._last_key: bytes | None = None
        self._started = False
        self._rows = 0  # of the partition, so far
        self._partition = partition
        self.report: WriteReport = WriteReport()

    @property
    def failed(self) -> bool:
        """Whether the write ended because of an error."""
        return self.report.error is not None

    def write(self, rows: Rows) -> None:
        """Write some rows. Raises :class:`TransportError` if the broker cannot be reached or is full for too long."""
        source = requests(rows, self._options, before=self._rows, partition=self._partition)
        self._rows += len(rows.keys)
        while not self.failed and (batch := list(islice(source, _BATCH if self._started else 1))):
            # The first row goes alone: a token that is out of date is noticed before a whole batch is refused.
            self._started = True
            for send, group in self._groups(self._usable(batch)):
                self._write_batch(group, send)

    def _groups(self, batch: list[Request]) -> list[tuple[Send, list[Request]]]:
        """What goes together. No key is in two groups, so their order does not matter."""
        if len(self._sends) == 1:
            return [(*self._sends, batch)]
        deletes: list[Request] = [request for request in batch if isinstance(request, bytes)]
        sets: list[Request] = [request for request in batch if not isinstance(request, bytes)]
        return [(send, group) for send, group in zip(self._sends, (sets, deletes), strict=True) if group]

    def _usable(self, batch: list[Request | InvalidArgumentError]) -> list[Request]:
        """The requests to send: those before the first bad row, or all good ones; one for each key."""
        if self._are_fresh(batch):
            return cast("list[Request]", batch)
        good: dict[Request, Request] = {}
        for request in batch:
            problem = request if isinstance(request, InvalidArgumentError) else self._duplicate(_key(request))
            if problem is not None:
                self._refuse(problem)
                if self.failed:
                    break
            elif not isinstance(request, InvalidArgumentError):
                self._keep_newest(good, request)
        return list(good.values())

    def _are_fresh(self, batch: list[Request | InvalidArgumentError]) -> bool:
        """Whether all rows are good and no key was there before: mostly so, and quickly seen for all rows at once."""
        if set(map(type, batch)) != {tuple}:
            return False
        keys = set(map(_KEY_OF_PAIR, cast("list[tuple[bytes, bytes]]", batch)))
        if len(keys) != len(batch) or (self._last_key is not None and self._last_key in keys):
            return False
        if self._options.duplicate_keys == "error":
            self._last_key = _key(cast("list[Request]", batch)[-1])
        return True

    def _keep_newest(self, good: dict[Request, Request], request: Request) -> None:
        # VDELs of one key with two values are two questions; anything else has one answer per key.
        identity = request if self._options.operation == "vdelete" else _key(request)
        earlier = good.get(identity)
        if earlier is not None:
            self.report += WriteReport(not_applied=1)
            if _version(earlier) > _version(request):
                return
        good[identity] = request

    def _duplicate(self, key: bytes) -> InvalidArgumentError | None:
        if self._options.duplicate_keys == "last":
            return None
        if key == self._last_key:
            return InvalidArgumentError(
                f"the column {self._options.key_column!r} has the key {key[:80]!r} twice, and nothing tells which row "
                "is newer; say so with order_by or version_column, or let any of them win with duplicate_keys='last'"
            )
        self._last_key = key
        return None

    def _write_batch(self, batch: Sequence[Request], send: Send) -> None:
        if self.failed:
            return
        resent = self._delivery.resent
        try:
            outcomes = self._delivery.deliver(batch, send)
        except TransportError as error:
            if not error.fatal:
                raise
            # Wrong credentials stay wrong: another attempt of this task would not help.
            self.report += WriteReport(rejected=len(batch), error=error)
            return
        self.report += WriteReport(resent=self._delivery.resent - resent)
        applied = [o for o in outcomes if type(o) is SetResult and o.applied]
        stores = frozenset(o.store_id for o in applied if o.store_id is not None)
        if len(applied) == len(outcomes):
            self.report += WriteReport(written=len(applied), stores=stores)
            return
        self.report += WriteReport(stores=stores)
        if self._options.version_column is not None:
            self._explain_versions(batch, outcomes)
        for outcome in outcomes:
            self._count(outcome)

    def _explain_versions(self, batch: Sequence[Request], outcomes: list[object]) -> None:
        """Put into ``outcomes`` what users can make sense of: they gave versions, and no fencing token."""
        refused: list[int] = []
        for number, (request, outcome) in enumerate(zip(batch, outcomes, strict=True)):
            if isinstance(outcome, FencingTokenClockSkewError):
                reason = "more than a minute ahead of the state store's clock; until then it would keep other rows out"
                outcomes[number] = self._about_version(outcome, request, reason)
            elif isinstance(outcome, FencingTokenTooOldError):
                refused.append(number)
        for number, sealed in zip(refused, self._sealed([batch[number] for number in refused]), strict=True):
            if sealed is None:
                outcomes[number] = None  # not applied: the store has a newer row
                continue
            sealed.command = "SET"
            reason = (
                "a whole number, and the key was once written under a lock's fencing token, or with a timestamp as its "
                "version, which is newer than all whole numbers; delete the key first, or give timestamps as versions"
            )
            outcomes[number] = self._about_version(sealed, batch[number], reason)

    def _sealed(self, refused: Sequence[Request]) -> list[FencingTokenTooOldError | None]:
        """For each request its refusal, if the key takes no whole number as its version, ever.

        A VDEL of a value that no key holds changes nothing, and is refused where its token is too old (state store
        protocol, "Fencing Token Algorithm").
        """
        asked = [r for r in refused if isinstance(r, SetItem) and _version_of(r) <= GREATEST_WHOLE]
        questions = [(_key(request), secrets.token_bytes(16)) for request in asked]
        answers = self._delivery.deliver(questions, partial(_vdelete, GREATEST_WHOLE)) if questions else []
        found = {
            id(request): copy.copy(answer)
            for request, answer in zip(asked, answers, strict=True)
            if isinstance(answer, FencingTokenTooOldError)
        }
        return [found.get(id(request)) for request in refused]

    def _about_version(self, error: _Error, request: Request, reason: str) -> _Error:
        shown = version_text(_version_of(request)) if isinstance(request, SetItem) else ""
        return _advised(error, f"the column {self._options.version_column!r} has {shown}, {reason}")

    def _count(self, outcome: object) -> None:
        if isinstance(outcome, StateStoreError):
            self._refuse(outcome)
        elif (isinstance(outcome, SetResult) and outcome.applied) or (
            isinstance(outcome, DeleteResult) and outcome.count
        ):
            self.report += WriteReport(written=1)
        else:
            self.report += WriteReport(not_applied=1)

    def _refuse(self, error: StateStoreError) -> None:
        if isinstance(error, FencingTokenRequiredError):
            # The job that once gave the key a version may not have known that a version is a token.
            version, token = self._options.called("version_column"), self._options.called("fencing_token")
            error = _advised(
                error,
                f"{error.message}: an earlier write gave the key a version or a lock's token, and so each write of it "
                f"needs {version} or {token} from then on",
            )
        if self._options.error_mode == "continue" and isinstance(error, self._row_errors):
            self.report += WriteReport(rejected=1, rejection=error)
        else:
            self.report += WriteReport(rejected=1, error=error)


def write_partition(
    batches: Iterable[Rows], settings: ConnectionSettings, options: WriteOptions, application: str | None = None
) -> WriteReport:
    """Write a partition with this process's pooled client.

    The report carries an error that a repeated task could not cure. Raises :class:`TransportError` for one it could.
    """
    if options.gc_freeze:
        begin_task()
    key = PoolKey(settings, options.client_id_prefix or settings.client_id or "spark", application)
    if _attempt_number() > 0:
        POOL.drop(key)  # whatever broke the earlier attempt, this one starts with a new connection
    partition = _partition()
    what = "rows" if partition is None else f"rows of partition {partition}"
    delivery = Delivery(key, retry_timeout_s=options.retry_timeout, what=what)
    write = PartitionWrite(delivery, options, partition)
    try:
        for rows in _until_failed(batches, write):
            write.write(rows)
    except SettingsError as error:  # a file of the connection
        message = f"{error} (on the worker {gethostname()}: it is read there, at each connect)"
        return write.report + WriteReport(error=SettingsError(message))
    return write.report


def report_partition(
    batches: Iterable[Rows], settings: ConnectionSettings, options: WriteOptions, application: str | None, write_id: str
) -> WriteReport:
    """The same, with *every* error of this package in the report: Spark repeats no task, and raises nothing of its own.

    When a task has tried to reach the broker for ``retry_timeout``, the later tasks of the same write in this process
    do not try again: the write has failed, and a hundred partitions would take a hundred times as long to say so.
    """
    if (earlier := _given_up.get(write_id)) is not None:
        return WriteReport(error=earlier)
    try:
        return write_partition(batches, settings, options, application)
    except StateStoreError as error:
        if len(_given_up) >= _MOST_GIVEN_UP:
            del _given_up[next(iter(_given_up))]
        _given_up[write_id] = error
        return WriteReport(error=error)


def _until_failed(batches: Iterable[Rows], write: PartitionWrite) -> Iterator[Rows]:
    for rows in batches:
        yield rows
        if write.failed:
            return


def _advised(error: _Error, text: str) -> _Error:
    """The same refusal of the same command, in other words."""
    advised = copy.copy(error)
    advised.args = (text,)
    return advised


def _attempt_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _partition() -> int | None:
    """The number of the partition that this task writes; None outside of tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.partitionId()


def _row_errors(options: WriteOptions) -> tuple[type[StateStoreError], ...]:
    """What is wrong with one row and not with the job: its columns, its key's protection, its own version."""
    of_version = () if options.version_column is None else (FencingTokenClockSkewError, FencingTokenTooOldError)
    return (InvalidArgumentError, FencingTokenRequiredError, *of_version)


def _sends(options: WriteOptions) -> tuple[Send, ...]:
    """What sends the requests: one for all, or one for those that set and one for those that delete."""
    if options.tombstone_s is not None:
        operations: tuple[Operation, ...] = ("set",)
    elif options.null_value == "delete":
        operations = ("set", "delete")
    else:
        operations = (options.operation,)
    return tuple(
        partial(_set, options.fencing_token, options.persist)
        if operation == "set"
        else partial(_DELETIONS[operation], options.fencing_token)
        for operation in operations
    )


def _set(token: Any, persist: bool, client: StateStoreClient, items: Iterable[Any], timeout: float) -> Sequence[object]:
    return client.set_many(items, fencing_token=token, persist=persist, timeout=timeout)


def _delete(token: Any, client: StateStoreClient, items: Iterable[Any], timeout: float) -> Sequence[object]:
    return client.delete_many(items, fencing_token=token, timeout=timeout)


def _vdelete(token: Any, client: StateStoreClient, items: Iterable[Any], timeout: float) -> Sequence[object]:
    return client.vdelete_many(items, fencing_token=token, timeout=timeout)


_DELETIONS: Final = {"delete": _delete, "vdelete": _vdelete}


def _key(request: Request) -> bytes:
    if isinstance(request, bytes):
        return request
    key = request.key if isinstance(request, SetItem) else request[0]
    assert isinstance(key, bytes)  # noqa: S101 - requests() makes them so
    return key


def _version_of(item: SetItem) -> HlcTimestamp:
    token = item.fencing_token
    assert isinstance(token, HlcTimestamp)  # noqa: S101 - requests() gives each row its version
    return token


def _version(request: Request) -> Any:
    """What orders the rows of a key within a batch; the later one wins among equals."""
    return (request.fencing_token or "") if isinstance(request, SetItem) else ""


_ROWS_PER_BATCH: Final = 4096


@attrs.frozen
class PartitionWriter:
    """Writes the rows of a partition; made by :func:`partition_writer`. It pickles, and its repr shows no secret."""

    settings: ConnectionSettings
    options: WriteOptions
    report: ReportSink | None = attrs.field(default=None, repr=False)
    application: str | None = None

    def __call__(self, rows: Iterable[Any]) -> None:
        """Write these rows; called by Spark in a worker process."""
        try:
            report = write_partition(self._batches(rows), self.settings, self.options, self.application)
        except InvalidArgumentError as error:  # a missing column
            report = WriteReport(error=error)
        if self.report is not None:
            self.report.add(report)
        else:
            report.raise_for_error()
        report.log(self.settings.url, self.options)

    def _batches(self, rows: Iterable[Any]) -> Iterator[Rows]:
        source = iter(rows)
        while batch := list(islice(source, _ROWS_PER_BATCH)):
            yield row_rows(batch, self.options)


def partition_writer(
    settings: ConnectionSettings | str,
    *,
    report: ReportSink | None = None,
    fencing_token: HlcTimestamp | str | None = None,
    **options: Unpack[PartitionOptions],
) -> PartitionWriter:
    """A function for ``df.foreachPartition`` that writes the rows of each partition, pipelined.

    ``options`` are those of the sink in Python's spelling: ``key_column``, ``value_column``, ``ttl_column``,
    ``version_column``, ``operation``, ``error_mode``, ``retry_timeout``, ``client_id_prefix``. If a partition has a key
    twice, its last row wins; between partitions chance decides, unless there is a ``version_column``.

    With ``report`` (see :func:`report_accumulator`) an error that a repeated task could not cure, a rejected fencing
    token say, is reported instead of raised: check ``report.value.raise_for_error()`` after the job. Without it the
    error is raised in the task, and Spark repeats the task as often as it is configured to. Raises
    :class:`SettingsError` for unusable options.
    """
    checked = refuse_whole_job_options(WriteOptions.from_names(fencing_token=fencing_token, **options))
    return PartitionWriter(connection(settings), checked, report, application_id())
