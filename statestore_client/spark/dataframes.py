"""What is done with whole DataFrames: register the sink, write with typed errors, look values up, reduce events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Literal, Unpack
from uuid import uuid4

import attrs

from statestore_client import ConnectionSettings, HlcTimestamp, Item
from statestore_client.errors import SettingsError, StateStoreError
from statestore_client.spark.options import RowOptions, WriteOptions, connection
from statestore_client.spark.pool import PoolKey, application_id
from statestore_client.spark.report import WriteReport
from statestore_client.spark.rows import arrow_rows, check_column, check_columns, check_frame, find_column
from statestore_client.spark.writing import Delivery, begin_task, report_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from statestore_client.sync.client import StateStoreClient


def register(spark: SparkSession) -> None:
    """Make ``format("statestore_client")`` known to a session.

    Spark finds it by itself when the package is installed as usual; it does not in editable installations.
    """
    from statestore_client.spark.sink import StateStoreDataSource

    spark.dataSource.register(StateStoreDataSource)


def write_rows(
    df: DataFrame,
    settings: ConnectionSettings | str,
    *,
    fencing_token: HlcTimestamp | str | None = None,
    order_by: str | Sequence[str] | None = None,
    duplicate_keys: Literal["error", "last"] | None = None,
    **options: Unpack[RowOptions],
) -> WriteReport:
    """Write every row of ``df``, as the sink does, and return the counts.

    ``options`` are those of the sink in Python's spelling (``key_column``, ``value_column``, …). Unlike the sink it
    raises the state store's own errors: :class:`FencingTokenTooOldError` say, :class:`SettingsError` for wrong options
    and columns, and a :class:`TransportError` when the broker cannot be reached for ``retry_timeout`` seconds, which
    says what was tried. Spark repeats no task for that. It is the thing for ``foreachBatch``, and it works with Spark
    Connect.

    A key that comes twice, anywhere in ``df``:

    * with ``order_by``, one column or several, the row with the greatest is written, as :func:`latest_by_key` chooses;
    * with ``version_column``, the state store keeps the newest;
    * otherwise it raises :class:`InvalidArgumentError`, after rows of other keys were written. Spark sorts the rows by
      key for that, on disk if need be; ``duplicate_keys="last"`` spares data without repeated keys the sorting, and
      of repeated ones writes the last of a partition, whichever that is.
    """
    check_frame(df, "write_rows")
    checked = WriteOptions.from_names(fencing_token=fencing_token, **options)
    return write_frame(df, connection(settings), checked, order_by, duplicate_keys)


def write_frame(
    df: DataFrame,
    target: ConnectionSettings,
    options: WriteOptions,
    order_by: str | Sequence[str] | None,
    duplicate_keys: Literal["error", "last"] | None,
) -> WriteReport:
    """:func:`write_rows` with checked options, but for what is done with repeated keys."""
    order = [order_by] if isinstance(order_by, str) else list(order_by or ())
    if order and duplicate_keys == "error":
        raise SettingsError(
            "order_by and duplicate_keys='error' exclude each other: the one chooses, the other refuses"
        )
    checked = check_columns(df.schema, attrs.evolve(options, duplicate_keys=duplicate_keys or "last"))
    if order:
        df = _newest(df, checked.key_column, order)
    elif duplicate_keys is None and checked.operation == "set" and checked.version_column is None:
        checked = attrs.evolve(checked, duplicate_keys="error")
    if checked.duplicate_keys == "error":
        key = key_identity(df, checked.key_column)
        df = df.repartition(key).sortWithinPartitions(key)
    application, write_id = application_id(), uuid4().hex

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        import pyarrow

        report = report_partition((arrow_rows(b, checked) for b in batches), target, checked, application, write_id)
        for _ in batches:
            pass  # Spark ends a process that leaves rows unread; the next one would not know what this one has learnt
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array([pickle.dumps(report)])], ["report"])

    reports = df.mapInArrow(write, "report binary").collect()
    total = reduce(add, (_unpickle(row["report"]) for row in reports), WriteReport()).raise_for_error()
    total.log(target.url, checked)
    return total


def _unpickle(data: bytes | bytearray) -> WriteReport:
    import pickle

    report = pickle.loads(bytes(data))  # noqa: S301 - pickled by our own tasks, as all that Spark moves around
    assert isinstance(report, WriteReport)  # noqa: S101 - see above
    return report


def latest_by_key(df: DataFrame, *, key: str, order_by: str | Sequence[str]) -> DataFrame:
    """One row per key: the one with the greatest ``order_by``, one column or several. Null keys are left out.

    ``order_by`` must order the rows of a key totally, or which of two equal ones is kept is up to chance. Nulls come
    first.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    check_frame(df, "latest_by_key")
    key = find_column(df.schema, key, "key")
    order = [order_by] if isinstance(order_by, str) else order_by
    return _newest(df.where(F.col(key).isNotNull()), key, order)


def _newest(df: DataFrame, key: str, order_by: Iterable[str]) -> DataFrame:
    """One row per key; null is a key here, so that it is not lost but refused when it is written."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    order = F.struct(*(find_column(df.schema, name, "order_by") for name in order_by))
    newest = F.max_by(F.struct(*df.columns), order).alias("newest")
    return df.groupBy(key_identity(df, key)).agg(newest).select("newest.*")


def key_identity(df: DataFrame, column: str) -> Column:
    """What tells the keys of a column apart: for texts their bytes, as in some of Spark's collations "a" equals "A"."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    is_text = df.schema[column].dataType.typeName().startswith(("string", "char", "varchar"))
    return F.col(column).cast("binary") if is_text else F.col(column)


# -- look-ups ----------------------------------------------------------------------------------------------------------
#
# Reading values for rows: a join with the state store, and single values inside UDFs.


def lookup(
    df: DataFrame,
    settings: ConnectionSettings | str,
    *,
    key: str,
    value_as: str = "value",
    version_as: str = "version",
    retry_timeout: float = 30.0,
    client_id_prefix: str = "spark",
    gc_freeze: bool = True,
) -> DataFrame:
    """``df`` with two more columns: the value (binary) and the version (its text) that the state store has for ``key``.

    Both are null where the store has no such key, and where ``key`` is null or empty. Each Arrow batch asks for each of
    its keys once, pipelined. A lost connection is tried again in the task for ``retry_timeout`` seconds; then the task
    fails, and Spark repeats it as often as it is configured to. ``gc_freeze=False`` spares worker processes
    ``gc.freeze()``, as the option of the sink does.

    The values are those of the time when the job runs, and of different moments within it; a second action reads
    again. Cache the result to work with one reading. Raises :class:`SettingsError` when a column is missing, of the
    wrong type, or would come twice.
    """
    check_frame(df, "lookup")
    column = _check(df.schema, key, value_as, version_as)
    pool_key = PoolKey(connection(settings), client_id_prefix, application_id())

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if gc_freeze:
            begin_task()
        delivery = Delivery(pool_key, retry_timeout_s=retry_timeout, what="look-ups")
        for batch in batches:
            yield _with_values(batch, column, value_as, version_as, delivery)

    return df.mapInArrow(read, _schema(df.schema, value_as, version_as))


def get_value(
    settings: ConnectionSettings | str, key: bytes | str | None, *, retry_timeout: float = 30.0
) -> bytes | None:
    """The value of ``key``, or None; for use inside a UDF. It takes a round trip: prefer :func:`lookup` for columns.

    A key that is None or empty, as a null in a column is, has no value, and the store is not asked.
    All calls in a worker process share one client, which any number of threads may use. Close over the settings, not
    over a client. Raises as :meth:`StateStoreClient.get` does.
    """
    if key is None or len(key) == 0:
        return None
    delivery = Delivery(PoolKey(connection(settings)), retry_timeout_s=retry_timeout, what="look-ups")
    item = _one(delivery.deliver([key], _get))
    return None if item is None else item.value


def _get(client: StateStoreClient, keys: Iterable[Any], timeout: float) -> Sequence[object]:
    return client.get_many(keys, timeout=timeout)


def _one(outcomes: list[object]) -> Item | None:
    (outcome,) = outcomes
    if isinstance(outcome, StateStoreError):
        raise outcome
    assert outcome is None or isinstance(outcome, Item)  # noqa: S101 - what get_many returns
    return outcome


def _check(schema: StructType, key: str, value_as: str, version_as: str) -> str:
    column = check_column(schema, key, "key_column", "key")
    taken = {name.lower() for name in schema.names}
    for option, name in (("value_as", value_as), ("version_as", version_as)):
        if name.lower() in taken:
            raise SettingsError(f"the data already has a column {name!r}; choose another name with {option}")
        taken.add(name.lower())
    return column


def _schema(schema: StructType, value_as: str, version_as: str) -> StructType:
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    return StructType([*schema.fields, StructField(value_as, BinaryType()), StructField(version_as, StringType())])


def _with_values(
    batch: pa.RecordBatch, column: str, value_as: str, version_as: str, delivery: Delivery
) -> pa.RecordBatch:
    import pyarrow

    keys = batch.column(column).to_pylist()
    found = _read_once_each(keys, delivery)
    items = [found.get(key) for key in keys]
    values = pyarrow.array([None if i is None else i.value for i in items], pyarrow.binary())
    versions = pyarrow.array([_version_text(i) for i in items], pyarrow.string())
    return pyarrow.RecordBatch.from_arrays(
        [*batch.columns, values, versions], [*batch.schema.names, value_as, version_as]
    )


def _read_once_each(keys: list[Any], delivery: Delivery) -> dict[Any, Item]:
    wanted = [key for key in dict.fromkeys(keys) if key]  # no key is null or empty
    outcomes = delivery.deliver(wanted, _get)
    found: dict[Any, Item] = {}
    for key, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, StateStoreError):
            raise outcome
        if isinstance(outcome, Item):
            found[key] = outcome
    return found


def _version_text(item: Item | None) -> str | None:
    return None if item is None or item.version is None else str(item.version)
