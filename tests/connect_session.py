"""A Spark Connect server in a Java process of this run, and a session of it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from statestore_client.spark import register
from statestore_client.spark.session import _CONFIG, _end_java, _environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["connect_session"]


@contextlib.contextmanager
def connect_session(name: str, *, cores: str, config: Mapping[str, str]) -> Iterator[SparkSession]:
    """What ``local_session`` is, with Spark Connect in between. The server listens on 127.0.0.1:15002."""
    from pyspark.sql import SparkSession

    wanted = {**_CONFIG, "spark.connect.grpc.binding.address": "127.0.0.1", "spark.log.level": "OFF", **config}
    with _environment():
        builder = SparkSession.builder.remote(f"local[{cores}]").appName(name)
        for key, value in wanted.items():
            builder = builder.config(key, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PySpark gives the server's settings to the session once more, in vain
            spark = builder.getOrCreate()
        register(spark)
        try:
            yield spark
        finally:
            spark.stop()
            _end_java()
