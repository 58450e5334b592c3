"""``statestore serve --site --curve-keys``: a site that other machines may reach."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.keys import make_keys
from support.ports import reserved_port
from support.waiting import eventually

from statestore_client.errors import RequestTimeoutError
from statestore_client.kvstore import ClientKeys, SiteClient

COMMAND = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0"]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The keys of two sites and of a client."""
    return make_keys(tmp_path / "keys", ("bonn", "rome"))


def test_a_site_with_keys_listens_beyond_its_machine(keys: Path, tmp_path: Path) -> None:
    """Without --insecure. A client with a key comes in, one without is refused, logged and counted."""
    port, metrics = reserved_port(), reserved_port()
    site = ["--site", "bonn", "--site-listen", f"tcp://0.0.0.0:{port}", "--curve-keys", str(keys)]
    peer = ["--peer", "rome=tcp://127.0.0.1:1", "--metrics-port", str(metrics)]
    log = tmp_path / "log"
    with log.open("wb") as file, subprocess.Popen([*COMMAND, *site, *peer], stdout=subprocess.PIPE, stderr=file) as run:
        try:
            assert run.stdout is not None
            while not (line := run.stdout.readline()).startswith(b"listening for sites"):
                assert line, log.read_text()
            url = f"tcp://127.0.0.1:{port}"
            with SiteClient(url, keys=ClientKeys.read(tmp_path / "app.key_secret", keys / "bonn.key")) as client:
                client.set("k", b"v")
                assert client.peers().unreached == ("rome=tcp://127.0.0.1:1",)
            with (
                SiteClient(url, timeout_s=0.4) as client,
                pytest.raises(RequestTimeoutError, match="oes it want keys"),
            ):
                client.get("k")
            eventually(lambda: "site bonn refuses connections from" in log.read_text())
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as answer:
                page = answer.read().decode().splitlines()
            (count,) = (each.split()[1] for each in page if each.startswith("statestore_site_refused_handshakes_total"))
            assert int(count) > 0
        finally:
            run.terminate()
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--curve-keys", "KEYS"], "--curve-keys needs --site NAME"),
        (["--site", "oslo", "--curve-keys", "KEYS"], "oslo.key_secret cannot be used: No such file"),
        (["--site", "bonn", "--curve-keys", "KEYS/nowhere"], "cannot be read: there is none"),
        (["--site", "bonn", "--curve-keys", "KEYS", "--peer", "oslo=tcp://127.0.0.1:1"], "the public key of site oslo"),
        (["--site", "bonn", "--curve-keys", "KEYS", "--peer", "tcp://127.0.0.1:1"], "say whose key is expected"),
        (["--site", "bonn", "--peer", "rome=tcp://127.0.0.1:1"], "addresses are tcp://host:port or ipc://path"),
    ],
)
def test_keys_that_cannot_work_end_the_start(keys: Path, options: list[str], says: str) -> None:
    """With exit code 2 and the file that is at fault."""
    given = [each.replace("KEYS", str(keys)) for each in options]
    listen = ["--site-listen", "tcp://127.0.0.1:*"] if "--site" in options else []
    done = subprocess.run([*COMMAND, *given, *listen], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in " ".join(done.stderr.decode().split())
