"""``statestore info``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.waiting import eventually

from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client.server import EmbeddedServer, ReplicaSettings

Here = Callable[..., tuple[int, str, str]]


def test_a_durable_server(here: Here, tmp_path: Path) -> None:
    """Both ports say it, for people and for programs."""
    data = tmp_path / "data"
    with EmbeddedServer(data=data, metrics_port=0, monitor_port=0) as server:
        code, text, _ = here("info", server.urls["http"])
        assert (code, text.splitlines()[2:4]) == (0, ["durable, alone", f"directory: {data}, format 3"])
        assert f"data = {data}" in text.splitlines()
        assert "dialect = service" not in text
        assert "dialect = service" in here("info", "--all", server.urls["http"])[1]
        found = json.loads(here("info", "--json", str(server.monitor_url))[1])
        assert (found["pid"], found["urls"][0]) == (os.getpid(), server.url)
        url = server.urls["http"]
    code, _, complaint = here("info", url)
    assert (code, complaint.startswith("statestore: no server at ")) == (4, True)


@pytest.mark.ci
def test_a_replicated_server(here: Here) -> None:
    """It says who it is, and who is active."""
    with (
        EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster,
        EmbeddedServer(metrics_port=0, log=ReplicaSettings(log=cluster.seeds, id="a")) as first,
    ):
        eventually(lambda: first.is_active, "the first server is active")
        with EmbeddedServer(metrics_port=0, log=ReplicaSettings(log=cluster.seeds, id="b")) as second:
            assert "replicated, a is active in epoch 1, format 1, at 127.0.0.1:" in here("info", first.urls["http"])[1]
            text = here("info", second.urls["http"])[1]
            assert ("b is standby in epoch 1" in text, "; active: a" in text) == (True, True)
            found = json.loads(here("info", "--json", second.urls["http"])[1])
            assert (found["kind"], found["directory"], found["log"]["active"]) == ("replicated", None, "a")


def test_what_is_no_server(here: Here) -> None:
    """The address of clients, and none at all."""
    assert here("info", "mqtt://127.0.0.1:1883")[0] == 2
    assert here("info")[0] == 2
