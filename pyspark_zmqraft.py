"""Lets Spark find ``format("zmqraft")``: it looks for ``DefaultSource`` in modules named ``pyspark_*``."""

from __future__ import annotations

from raft_client.spark.source import ZmqRaftDataSource

__all__ = ["DefaultSource"]


class DefaultSource(ZmqRaftDataSource):
    """The source ``zmqraft``."""
