"""Spark for the state store: a sink, a query with a standby driver, a partition writer, look-ups, pooled clients.

Importing this package imports neither PySpark nor PyArrow: workers load what a task needs, when it needs it.

========================================  ============================================================================
``df.write.format("statestore_client")``         the sink; :func:`register` it, or rely on Spark's auto-registration
:class:`ActiveStandby`                    a streaming query that one of several drivers runs, and the next takes over
:class:`BatchWriter`                      for ``foreachBatch``: each micro-batch exactly once; aggregations, above all
:func:`write_rows`                        the same write, which returns a :class:`WriteReport` and raises typed errors
:func:`partition_writer`                  for ``df.foreachPartition``
:func:`lookup`, :func:`get_value`         read values for the rows of a DataFrame, or inside a UDF
:func:`latest_by_key`                     reduce events to one row per key, which the sink wants
:func:`local_session`                     a local SparkSession, with a Java runtime from PyPI if there is no other
========================================  ============================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statestore_client.spark.active_standby import ActiveStandby
    from statestore_client.spark.batch_writer import BatchWriter
    from statestore_client.spark.dataframes import get_value, latest_by_key, lookup, register, write_rows
    from statestore_client.spark.marker import Marker
    from statestore_client.spark.options import WriteOptions
    from statestore_client.spark.pipeline import PipelineEvent
    from statestore_client.spark.report import ReportSink, WriteReport, report_accumulator
    from statestore_client.spark.session import JavaNotFoundError, find_java_home, local_session
    from statestore_client.spark.writing import PartitionWriter, partition_writer

__all__ = [
    "ActiveStandby",
    "BatchWriter",
    "JavaNotFoundError",
    "Marker",
    "PartitionWriter",
    "PipelineEvent",
    "ReportSink",
    "WriteOptions",
    "WriteReport",
    "find_java_home",
    "get_value",
    "latest_by_key",
    "local_session",
    "lookup",
    "partition_writer",
    "register",
    "report_accumulator",
    "write_rows",
]

_HOMES = {
    "ActiveStandby": "active_standby",
    "BatchWriter": "batch_writer",
    "JavaNotFoundError": "session",
    "Marker": "marker",
    "PartitionWriter": "writing",
    "PipelineEvent": "pipeline",
    "ReportSink": "report",
    "WriteOptions": "options",
    "WriteReport": "report",
    "find_java_home": "session",
    "get_value": "dataframes",
    "latest_by_key": "dataframes",
    "local_session": "session",
    "lookup": "dataframes",
    "partition_writer": "writing",
    "register": "dataframes",
    "report_accumulator": "report",
    "write_rows": "dataframes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
