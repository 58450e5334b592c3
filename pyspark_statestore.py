"""Lets Spark find ``format("statestore_client")``: it looks for ``DefaultSource`` in modules named ``pyspark_*``."""

from __future__ import annotations

from statestore_client.spark.sink import StateStoreDataSource

__all__ = ["DefaultSource"]


class DefaultSource(StateStoreDataSource):
    """The sink ``statestore_client``."""
