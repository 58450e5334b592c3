"""Spark for the replicated log: its entries as a table and as a stream, and rows into it, exactly once.

Importing this package imports neither PySpark nor PyArrow: workers load what a task needs, when it needs it.

============================  ========================================================================================
:func:`read_entries`          a range of the log as a DataFrame; raises this package's own errors
``format("zmqraft")``         for ``read``, ``readStream``, ``write`` and ``writeStream``; :func:`register` it, or rely
                              on Spark's auto-registration
:func:`entries_behind`        how far a streaming query is behind the end of the log
============================  ========================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raft_client.spark.dataframes import entries_behind, read_entries, register
    from raft_client.spark.options import ReadOptions

__all__ = ["ReadOptions", "entries_behind", "read_entries", "register"]

_HOMES = {
    "ReadOptions": "options",
    "entries_behind": "dataframes",
    "read_entries": "dataframes",
    "register": "dataframes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
