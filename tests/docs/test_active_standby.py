"""The service of ``how-to/active-standby.md`` in a situation that its page does not show: without its broker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.ports import reserved_port
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "active-standby.md"


def test_a_standby_copy_that_loses_its_broker_logs_it(tmp_path: Path) -> None:
    """A standby copy that loses its broker logs that, does not become active, and is a candidate again once the broker
    is back."""
    block = re.search(r"```python\n(# service\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "service.py").write_text(block[1])
    log = tmp_path / "log"
    with log.open("wb") as output:
        port = reserved_port()
        with EmbeddedServer(port) as server:
            url = server.url
            with StateStoreClient(url) as store:
                store.set("line1/leader", "another copy")
            service = subprocess.Popen([sys.executable, "service.py", url, "two"], stdout=output, cwd=tmp_path)
            eventually(lambda: any(b"NEX" in m.payload for m in server.messages), "it has campaigned")
            assert log.read_bytes() == b""
        try:
            eventually(lambda: b"two has no connection: the election" in log.read_bytes(), "it logs the outage")
            with EmbeddedServer(port=port):
                eventually(lambda: b"two is active" in log.read_bytes(), "it leads")
                service.terminate()
                assert service.wait(30) == 0
        finally:
            if service.poll() is None:
                service.kill()
                service.wait()
    assert b"who leads is not known" in log.read_bytes()
