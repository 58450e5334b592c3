"""The example of a failover, in small: real servers, one of which is killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from failover.clients import Writer

import statestore_client
from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_demo_in_small() -> None:
    """It ends with exit code 0, tells the gaps, and nothing is lost; no directory is left. Where there are network
    namespaces a cable was pulled out.
    """
    path = os.pathsep.join((str(EXAMPLES), str(Path(statestore_client.__file__).parent.parent)))
    done = subprocess.run(
        [sys.executable, "-m", "failover", "--seconds", "0.2"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    killed = re.search(r"kill -9 of ([abc]): ([abc]) is active, no answer for (\d+) ms", done.stdout)
    handed_over = re.search(r"planned hand-over of ([abc]): ([abc]) is active, no answer for (\d+) ms", done.stdout)
    assert killed is not None
    assert handed_over is not None
    assert killed[1] != killed[2] == handed_over[1] != handed_over[2]
    assert int(killed[3]) > 100  # nobody is active before the lease of the killed one is over
    if "each on a machine of its own" in done.stdout:
        cut = re.search(r"cable out of ([abc]): ([abc]) is active, no answer for (\d+) ms", done.stdout)
        assert cut is not None
        assert cut[1] != cut[2]
        assert int(cut[3]) > 100
    else:
        assert "STATESTORE_REQUIRE_TOOLS" not in os.environ
        assert "no cable is pulled out" in done.stdout
    for text in (r"of those, lost +│ +0 ", r"the lock, with one fencing token +│ +kept"):
        assert re.search(text, done.stdout), done.stdout
    folder = re.search(r"--data (\S+)/a ", done.stdout)
    assert folder is not None
    assert not Path(folder[1]).exists()


def test_what_is_lost_is_counted() -> None:
    """A key that was acknowledged and is gone, and one with another value, are lost; and the longest gap is found."""
    with EmbeddedServer() as server, StateStoreClient(server.url) as store:
        writer = Writer(server.url, 1)
        writer.times = [1.0, 1.1, 1.5, 1.6]
        for count, value in enumerate(("0", "1", "other")):
            store.set(writer.key(count), value)
        assert writer.lost(store) == 2
        assert writer.gap(1.2) == 1.5 - 1.1
        assert writer.gap(1.55) == 1.6 - 1.5
