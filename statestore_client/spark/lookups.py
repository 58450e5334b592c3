"""Reading values for rows: a join with the state store, and single values inside UDFs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from statestore_client import ConnectionSettings, Item
from statestore_client.errors import SettingsError, StateStoreError
from statestore_client.spark.options import connection
from statestore_client.spark.pool import PoolKey, application_id
from statestore_client.spark.rows import check_column, check_frame
from statestore_client.spark.writing import Delivery, begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from statestore_client.sync.client import StateStoreClient


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
