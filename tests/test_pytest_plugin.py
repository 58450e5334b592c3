"""The fixtures for users' own tests; docs/how-to/test-your-app.md runs more of them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import statestore_client as package
from statestore_client import StateStoreClient
from statestore_client.server import BrokerLimits, EmbeddedServer

FAILING = """
import pytest

def test_that_fails(statestore_client, mqtt_broker):
    mqtt_broker.publish("site/temperature", "21.5")
    statestore_client.set("pump-7", "on")
    assert False

@pytest.mark.statestore_server(record_messages=0)
def test_that_records_nothing(mqtt_broker):
    assert False

@pytest.mark.statestore_server("document")
def test_with_a_marker_that_names_nothing(mqtt_broker):
    pass
"""


def test_all_fixtures_share_one_server(
    statestore_server: EmbeddedServer, mqtt_broker: EmbeddedServer, statestore_client: StateStoreClient
) -> None:
    """And faults can be set on it."""
    assert mqtt_broker is statestore_server
    assert mqtt_broker.host == "127.0.0.1"
    broken = mqtt_broker.faults.drop("PUBACK")
    statestore_client.set("k", "v")
    assert broken.hits == 1


@pytest.mark.statestore_server(broker_limits=BrokerLimits(maximum_qos=1), faults=False)
def test_a_test_can_have_a_server_of_its_own_kind(mqtt_broker: EmbeddedServer) -> None:
    """The marker has the arguments."""
    with pytest.raises(RuntimeError, match="faults=True"):
        _ = mqtt_broker.faults


def test_a_failed_test_shows_what_was_published(tmp_path: Path) -> None:
    """In a section of its own, or that nothing was recorded."""
    (tmp_path / "test_failing.py").write_text(FAILING)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(Path(package.__file__).parents[1])
    if not any(entry.name == "statestore_client" for entry in entry_points(group="pytest11")):
        environment["PYTEST_PLUGINS"] = "statestore_client.pytest_plugin"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", "--strict-markers", "-q"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 failed, 1 error" in run.stdout, run.stdout + run.stderr
    assert "takes options by name only, not ('document',)" in run.stdout
    assert "MQTT messages" in run.stdout
    assert "the server: site/temperature b'21.5'" in run.stdout
    assert "pump-7" in run.stdout
    assert "not recorded" in run.stdout
