"""Commands that see the system as a program in a container does, and machines with a network between them, where this
system has what that takes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

__all__ = ["Machines", "as_first_process", "as_stranger", "with_mounted_file"]

_ROOT: Final = ("unshare", "--user", "--map-root-user")


def as_first_process(*command: str) -> list[str]:
    """The command as process 1. Skips the test where there are no namespaces."""
    return _checked([*_ROOT, "--pid", "--fork", "--kill-child"], command)


def as_stranger(*command: str) -> list[str]:
    """The command as a user whom the system does not know, without HOME, and with no directory that it can write to."""
    read_only = (
        'for place in / /tmp /var/tmp /dev/shm; do mount -o remount,bind,ro "$place" 2>/dev/null; done; '
        '! touch /tmp/x /dev/shm/x 2>/dev/null && exec unshare --user --map-user 54321 env -u HOME -u TMPDIR "$@"'
    )
    return _checked([*_ROOT, "--mount", "sh", "-c", read_only, "sh"], command)


def with_mounted_file(source: Path, target: Path, *command: str) -> list[str]:
    """The command with the file ``source`` mounted at ``target``, as a container mounts a file alone."""
    target.touch()
    script = 'mount --bind "$0" "$1" && shift && exec "$@"'
    return _checked([*_ROOT, "--mount", "sh", "-c", script, str(source), str(target)], command)


def _checked(prefix: list[str], command: tuple[str, ...]) -> list[str]:
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this system makes no such namespaces")
    return [*prefix, *command]


class Machines:
    """Machines on one switch: each a network namespace with a cable (a veth pair) to a bridge. ``with`` makes them, as
    root; where that cannot be, the test is skipped. Ends of processes in them are the caller's affair.
    """

    def __init__(self, *names: str) -> None:
        self._prefix = f"st{os.getpid()}"
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}

    def __enter__(self) -> Self:
        if shutil.which("ip") is None or _ip("netns", "add", self._space("switch")):
            pytest.skip("this system makes no network namespaces")
        try:
            self._on_switch("add", "name", "bridge", "type", "bridge")
            self._on_switch("set", "dev", "bridge", "up")
            for name, address in self.addresses.items():
                space = self._space(name)
                done = (
                    _ip("netns", "add", space)
                    or self._on_switch("add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", space)
                    or self._on_switch("set", "dev", name, "master", "bridge")
                    or self._on_switch("set", "dev", name, "up")
                    or _ip("-n", space, "link", "set", "lo", "up")
                    or _ip("-n", space, "link", "set", "eth0", "up")
                    or _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
                )
                if done:
                    pytest.skip("this system connects no network namespaces")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in ("switch", *self.addresses):
            _ip("netns", "delete", self._space(name))

    def on(self, name: str, *command: str) -> list[str]:
        """The command on this machine."""
        return ["ip", "netns", "exec", self._space(name), *command]

    def cut(self, name: str) -> None:
        """Its cable is pulled out: whatever it sends and is sent is lost, and no connection ends."""
        assert self._on_switch("set", "dev", name, "down") == 0

    def mend(self, name: str) -> None:
        """The cable is in again."""
        assert self._on_switch("set", "dev", name, "up") == 0

    def slow_down(self, name: str, rate: str = "1mbit") -> None:
        """What this machine is sent comes at no more than this rate, of ``tc``."""
        limit = ("tbf", "rate", rate, "burst", "4kb", "latency", "400ms")
        command = ["tc", "qdisc", "replace", "dev", name, "root", *limit]
        subprocess.run(self.on("switch", *command), check=True, capture_output=True)

    def speed_up(self, name: str) -> None:
        """It comes as fast as before."""
        subprocess.run(self.on("switch", "tc", "qdisc", "delete", "dev", name, "root"), check=True, capture_output=True)

    def lose(self, sender: str, receiver: str) -> None:
        """What the first one sends to the second one is lost, and nothing else: it goes to a card that nobody has."""
        assert self._neighbour(sender, "replace", receiver, "lladdr", "02:00:00:00:00:01", "nud", "permanent") == 0

    def find(self, sender: str, receiver: str) -> None:
        """It arrives again."""
        assert self._neighbour(sender, "delete", receiver) == 0

    def _neighbour(self, name: str, does: str, other: str, *more: str) -> int:
        address = self.addresses[other]
        return _ip("-n", self._space(name), "neighbour", does, address, "dev", "eth0", *more)

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _on_switch(self, *link: str) -> int:
        return _ip("-n", self._space("switch"), "link", *link)


def _ip(*arguments: str) -> int:
    return subprocess.run(["ip", *arguments], capture_output=True).returncode
