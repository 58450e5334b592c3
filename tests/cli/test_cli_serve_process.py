"""``statestore serve`` as a process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slow_import import importing
from support.namespaces import as_first_process

from statestore_client import StateStoreClient
from statestore_client.cli.app import main

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


COMMAND = [sys.executable, "-m", "statestore_client.cli"]


@pytest.fixture
def served() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """``statestore serve`` on a free port, and its process."""
    process = subprocess.Popen([*COMMAND, "serve", "--port", "0", "--max-keys", "2"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line.startswith("listening on mqtt://127.0.0.1:")
    yield line.removeprefix("listening on ").strip(), process
    if process.poll() is None:
        process.kill()
    process.wait(10)
    process.stdout.close()


def test_serve_serves_until_told_to_stop(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    """``serve`` prints its address, keeps its quota, and exits with 0 on SIGTERM."""
    url, process = served
    with StateStoreClient(url) as store:
        store.set("a", "1")
        store.set("b", "2")
        with pytest.raises(Exception, match="the quota has been exceeded"):
            store.set("c", "3")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_serve_refuses_a_port_in_use(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    """A port that another server has ends it with exit code 10 and one line that names it, and not with the usage."""
    port = served[0].rsplit(":", 1)[1]
    done = subprocess.run([*COMMAND, "serve", "--port", port], capture_output=True, timeout=30)
    assert done.returncode == 10
    complaint = done.stderr.decode()
    assert complaint.startswith("statestore: cannot listen: ")
    assert (complaint.count("\n"), complaint.count(f"{port}")) == (1, 1)
    assert "address already in use; choose another port, or 0 for a free one" in complaint


@pytest.mark.parametrize("package", ["statestore_client", "raft_client"])
def test_sigterm_ends_a_server_that_is_still_importing(tmp_path: Path, package: str) -> None:
    """A SIGTERM that comes before the modules of the server are loaded ends it as a later one does."""
    with importing(tmp_path, sys.executable, "-m", f"{package}.cli", "serve") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.machine
@pytest.mark.parametrize("package", ["statestore_client", "raft_client"])
def test_sigterm_is_not_lost_on_the_first_process_of_a_container(tmp_path: Path, package: str) -> None:
    """As process 1, which ignores what it has no handler for, a server that is still importing ends on SIGTERM."""
    command = as_first_process(sys.executable, "-m", f"{package}.cli", "serve")
    with importing(tmp_path, *command) as (process, first):
        os.kill(first, signal.SIGTERM)
        assert process.wait(20) == 0


def test_sighup_leaves_a_server_that_is_still_importing(tmp_path: Path) -> None:
    """A SIGHUP before the files were read for the first time does not end the server."""
    with importing(tmp_path, sys.executable, "-m", "statestore_client.cli", "serve") as (process, _):
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_sigterm_ends_a_client_that_is_still_importing_as_others(tmp_path: Path) -> None:
    """A command that does not serve dies of SIGTERM, as everywhere: nothing was done."""
    with importing(tmp_path, sys.executable, "-m", "statestore_client.cli", "get", "serve") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (Debian: util-linux)")
@pytest.mark.parametrize("command", [("serve", "--port", "0", "--data"), ("check",)], ids=lambda words: words[0])
def test_a_directory_of_somebody_else_is_said_to_be(command: tuple[str, ...], tmp_path: Path) -> None:
    """The usual mistake with a volume: exit code 6, whose it is, and who wanted it."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0)
    rights = "-dac_override,-dac_read_search"
    as_usual = ["setpriv", "--bounding-set", rights, "--inh-caps", rights] if os.geteuid() == 0 else []
    done = subprocess.run([*as_usual, *COMMAND, *command, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert done.stderr == (
        f"statestore: the data directory {folder} cannot be used: Permission denied; it belongs to user "
        f"{folder.stat().st_uid}, and this process is of user {os.geteuid()}\n"
    )


@pytest.mark.parametrize(("reason", "code"), [(socket.EAI_AGAIN, 10), (socket.EAI_NONAME, 2)])
def test_a_name_that_is_not_known_yet_may_be_known_later(
    reason: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a machine starts, names may not be resolved: that is worth another attempt. One that nobody has is not."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(reason, "the resolver said so")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(sys, "argv", ["statestore", "serve", "--insecure", "--host", "broker.plant", "--port", "0"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
