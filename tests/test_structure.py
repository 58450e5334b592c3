"""How the packages are put together: from parts, in modules that can be read in one go."""

from __future__ import annotations

from pathlib import Path

import pytest

import raft_client
import raft_client.action_runner
import raft_client.aio.engine
import raft_client.aio.socket_reader
import raft_client.sync.engine
import raft_client.sync.socket_reader
import statestore_client
import statestore_client.action_runner
import statestore_client.aio.engine
import statestore_client.aio.link
import statestore_client.sync.engine
import statestore_client.sync.link
import statestore_client.sync.socket_loan

PACKAGES = [Path(str(package.__file__)).parent for package in (statestore_client, raft_client)]
PARTS = [
    statestore_client.action_runner.ActionRunner,
    statestore_client.aio.engine.Engine,
    statestore_client.aio.link.Link,
    statestore_client.sync.engine.Engine,
    statestore_client.sync.link.Link,
    statestore_client.sync.socket_loan.SocketLoan,
    raft_client.action_runner.ActionRunner,
    raft_client.aio.engine.Engine,
    raft_client.aio.socket_reader.SocketReader,
    raft_client.sync.engine.Engine,
    raft_client.sync.socket_reader.SocketReader,
]
LONGEST = 400


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.__module__}.{part.__name__}")
def test_what_drives_a_client_is_put_together_from_parts(part: type) -> None:
    """What drives a client is put together from parts, none of which inherits what another one does."""
    inherited = [cls for cls in part.__mro__[1:] if cls.__module__.startswith(("statestore_client", "raft_client"))]
    assert not inherited


def test_no_module_is_long() -> None:
    """Every module of both packages, and of the tests, has at most 400 lines."""
    modules = [path for folder in (*PACKAGES, Path(__file__).parent) for path in folder.rglob("*.py")]
    assert len(modules) > 300
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in modules}
    assert {path for path, lines in lengths.items() if lines > LONGEST} == set()
