"""One SparkSession for all tests (a Java process holds one context), one server for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from recording_server import RecordingServer

import statestore_client
from statestore_client import StateStoreClient
from statestore_client.spark import JavaNotFoundError, find_java_home, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores; a task may fail twice before its job fails, so that retries would show."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    try:
        find_java_home()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    _let_workers_import_the_package()
    config = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    with local_session("tests", cores="2,3", config=config, log_level="OFF") as session:
        yield session


def _let_workers_import_the_package() -> None:
    """Workers do not inherit pytest's sys.path; an installed package needs none of this."""
    home = str(Path(statestore_client.__file__).parent.parent)
    if "site-packages" not in home:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    """A server of the test's own."""
    with RecordingServer() as running:
        yield running


@pytest.fixture
def store(server: RecordingServer) -> Iterator[StateStoreClient]:
    """A client of that server."""
    with StateStoreClient(server.url, client_id="test") as client:
        yield client
