"""Peers of this package as processes of their own: ``zmqraft serve``."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from ports import reserved_port

__all__ = ["SERVE", "Peers"]

SERVE = [sys.executable, "-m", "raft_client.cli", "serve"]


class Peers:
    """Three peers with fixed addresses; each can be ended and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.urls = {name: f"tcp://127.0.0.1:{reserved_port()}" for name in ("1", "2", "3")}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return ",".join(self.urls.values())

    def command(self, name: str, *more: str) -> list[str]:
        members = [f"--peer={peer}={url}" for peer, url in self.urls.items()]
        return [*SERVE, "--id", name, *members, "--data", str(self.directory / name), *more]

    def start(self, name: str, *more: str) -> None:
        process = self.running[name] = subprocess.Popen(self.command(name, *more), stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on {self.urls[name]}\n".encode()

    def end(self, name: str, number: signal.Signals) -> int:
        process = self.running.pop(name)
        process.send_signal(number)
        code = process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def kill_all(self) -> None:
        """Whatever still runs."""
        for name in list(self.running):
            self.end(name, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
