"""Brokers of others without a state store: mosquitto, HiveMQ CE and mochi-mqtt, each a process on a port of 127.0.0.1.

Debian has mosquitto. HiveMQ CE is a library from Maven with fifteen lines of Java around it (Debian: ``maven
default-jdk-headless``), mochi-mqtt a Go module with as many lines of Go (Go 1.21). Both are built once, into
``$STATESTORE_HIVEMQ`` and ``$STATESTORE_MOCHI``, or folders in the user's cache.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs
import pytest
from support.ports import reserved_port
from support.raft_peers import tool_folder
from support.waiting import eventually

__all__ = ["BROKERS", "HIVEMQ", "MOSQUITTO", "ForeignBroker", "hosted_store", "skip_without"]

_HERE: Final = Path(__file__).parent
_START_TIMEOUT_S: Final = 60.0
_OLDEST_GO: Final = (1, 21)
#: Where Go's own archives are unpacked, and Debian's mosquitto is.
_MORE_PATHS: Final = ("/usr/local/go/bin", "/usr/sbin")
#: Short starts, not long runs: two thirds of the processor time of a start are saved.
_JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def _which(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_MORE_PATHS]))


def _built(variable: str, name: str, product: str, build: Callable[[Path], None]) -> Path:
    """The folder of a tool, which is built when ``product`` is not there. Safe in parallel test runs."""
    folder = tool_folder(variable, name)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / product).exists():
            build(folder)
    return folder


def _run(*command: str | Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0"}  # Go builds less
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=_HERE, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}\n{done.stderr}")


# -- mosquitto ---------------------------------------------------------------------------------------------------------


def _no_mosquitto() -> str | None:
    return None if _which("mosquitto") else "mosquitto is not installed"


def _mosquitto(folder: Path, port: int) -> list[str | Path]:
    config = folder / "mosquitto.conf"
    user = f"user {os.environ.get('USER', 'root')}\n" if os.geteuid() == 0 else ""
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n{user}")
    return [str(_which("mosquitto")), "-c", config]


# -- HiveMQ CE ---------------------------------------------------------------------------------------------------------


def _no_hivemq() -> str | None:
    missing = [tool for tool in ("mvn", "javac", "java") if _which(tool) is None]
    return f"{' and '.join(missing)} is not installed; HiveMQ CE comes from Maven" if missing else None


def _build_hivemq(folder: Path) -> None:
    pom = ("-f", _HERE / "hivemq" / "pom.xml")
    _run("mvn", "-q", "-B", *pom, "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}")
    _run("javac", "-cp", f"{folder / 'lib'}/*", "-d", folder, _HERE / "hivemq" / "Broker.java")


def _hivemq(folder: Path, port: int) -> list[str | Path]:
    built = _built("STATESTORE_HIVEMQ", "hivemq-ce-2025.5", "Broker.class", _build_hivemq)
    (folder / "config.xml").write_text(
        f"<hivemq><listeners><tcp-listener><port>{port}</port><bind-address>127.0.0.1</bind-address></tcp-listener>"
        "</listeners><anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics></hivemq>"
    )
    return ["java", *_JAVA_OPTIONS, "-cp", f"{built}:{built}/lib/*", "Broker", folder]


# -- mochi-mqtt --------------------------------------------------------------------------------------------------------


def _no_mochi() -> str | None:
    go = _which("go")
    if go is None:
        return "go is not installed; mochi-mqtt is a Go module"
    told = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", told)
    if found is None or tuple(map(int, found.groups())) < _OLDEST_GO:
        return f"mochi-mqtt needs Go 1.21 or newer, and here is {told.strip() or 'a go that fails'}"
    return None


def _build_mochi(folder: Path) -> None:
    part = folder / "broker.part"
    _run(str(_which("go")), "-C", _HERE / "mochi", "build", "-o", part, ".")
    part.rename(folder / "broker")


def _mochi(folder: Path, port: int) -> list[str | Path]:
    del folder
    return [_built("STATESTORE_MOCHI", "mochi-mqtt-2.7.9", "broker", _build_mochi) / "broker", f"127.0.0.1:{port}"]


# -- all of them -------------------------------------------------------------------------------------------------------


@attrs.frozen
class ForeignBroker:
    """One kind of broker, and what is known of it. ``why_not`` says what is missing on this machine to run it."""

    name: str
    why_not: Callable[[], str | None]
    _command: Callable[[Path, int], list[str | Path]]
    #: Whether PUBACK says so when nobody is subscribed.
    tells: bool
    #: Whether its packets keep to MQTT 5, as far as this client sees them.
    is_strict: bool = True
    #: How many requests are sent through it at a time.
    pipeline: int = 200

    @contextmanager
    def running(self, folder: Path, *lines: str) -> Iterator[str]:
        """The URL of one that runs, with its data in this folder. ``lines`` are for mosquitto's configuration."""
        port = reserved_port()
        command = self._command(folder, port)
        if lines:
            with (folder / "mosquitto.conf").open("a") as config:
                config.writelines(f"{line}\n" for line in lines)
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as process:
            try:
                eventually(
                    lambda: _listens(port) or process.poll() is not None,
                    f"{self.name} has started",
                    timeout_s=_START_TIMEOUT_S,
                    every_s=0.05,
                )
                assert process.poll() is None, f"{self.name} has ended"
                yield f"mqtt://127.0.0.1:{port}"
            finally:
                process.kill()  # its data is thrown away


@contextmanager
def hosted_store(url: str, folder: Path, *options: str) -> Iterator[Iterator[str]]:
    """``statestore serve --broker`` that says it is ready, with its data in this folder; what it prints then."""
    command = [sys.executable, "-m", "statestore_client.cli", "serve", "--broker", url, "--data", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("hosting the state store on ")
            yield process.stdout
        finally:
            process.terminate()


def skip_without(kind: ForeignBroker) -> None:
    """Skips where it cannot be had, and fails where the tools are required."""
    if (missing := kind.why_not()) is not None:
        (pytest.fail if os.environ.get("STATESTORE_REQUIRE_TOOLS") else pytest.skip)(missing)


def _listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


MOSQUITTO: Final = ForeignBroker("mosquitto", _no_mosquitto, _mosquitto, tells=True)
HIVEMQ: Final = ForeignBroker("HiveMQ CE", _no_hivemq, _hivemq, tells=True)
BROKERS: Final = (
    MOSQUITTO,
    HIVEMQ,
    # With 200 at a time it answers nobody any more, now and then, not even a CONNECT: in 4 of 9 runs.
    ForeignBroker("mochi-mqtt", _no_mochi, _mochi, tells=False, is_strict=False, pipeline=1),
)
