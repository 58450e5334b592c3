"""Commands that see the system as a program in a container does, and machines with a network between them, where this
system has what that takes.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final, Self

import failover.machines
import pytest
from failover.machines import NoMachinesError

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


class Machines(failover.machines.Machines):
    """Those of the demo of a failover, on a switch of their own, and more that can happen to them. The test is skipped
    where they cannot be made.
    """

    def __init__(self, *names: str) -> None:
        super().__init__(*names, switch="switch")

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except NoMachinesError as error:
            pytest.skip(str(error))

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
        self._neighbour(sender, "replace", receiver, "lladdr", "02:00:00:00:00:01", "nud", "permanent")

    def find(self, sender: str, receiver: str) -> None:
        """It arrives again."""
        self._neighbour(sender, "delete", receiver)

    def _neighbour(self, name: str, does: str, other: str, *more: str) -> None:
        address = self.addresses[other]
        self._ip("-n", self._space(name), "neighbour", does, address, "dev", "eth0", *more)
