"""Scripted peers for jobs of a real Spark session, and real peers for one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import raft_client

# The scripted peers and the cluster of real ones live beside the tests that need them most.
sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("raft_behaviour", "interop")]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from scripted_cluster import ScriptedCluster


@pytest.fixture
def peers() -> Iterator[ScriptedCluster]:
    """Three scripted peers, of which "1" leads."""
    from scripted_cluster import ScriptedCluster

    with ScriptedCluster() as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two cores. It ends with the module, and that of another folder is used: a process holds one Spark context."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    from pyspark.sql import SparkSession

    from statestore_client.spark import JavaNotFoundError, find_java_home, local_session

    try:
        find_java_home()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    if (other := SparkSession.getActiveSession()) is not None:
        yield other
        return
    _let_workers_import_the_package()
    config = {"spark.sql.session.timeZone": "UTC"}
    with local_session("raft tests", cores="2", config=config, log_level="OFF") as session:
        yield session


def _let_workers_import_the_package() -> None:
    """Workers do not inherit pytest's sys.path; an installed package needs none of this."""
    home = str(Path(raft_client.__file__).parent.parent)
    if "site-packages" not in home:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
