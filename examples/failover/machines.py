"""Machines on one switch, in network namespaces of Linux: each has an address, and a cable that can be pulled out.

A pulled cable loses what both sides send and ends no connection, as a lost machine does. ``kill -9`` is kinder: the
kernel closes the connections, and all others know at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import TracebackType
from typing import Final, Self

__all__ = ["Machines", "NoMachinesError", "enter_own_network"]

_IS_SWITCH: Final = "STATESTORE_DEMO_IS_SWITCH"
#: A network and a /run of its own, in which ``ip netns`` keeps its names; nothing of it outlives the process.
_UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--net", "--mount")
_MOUNT: Final = 'mount -t tmpfs tmpfs /run && ip link set lo up && exec "$@"'


class NoMachinesError(Exception):
    """This system makes no network namespaces, or connects none."""


def enter_own_network(*command: str) -> bool:
    """Replace this process by the command in a network of its own. No root is needed where users may make namespaces.

    Returns True in that process, and False where this cannot be.
    """
    if os.environ.get(_IS_SWITCH):
        return True
    prefix = [*_UNSHARE, "sh", "-c", _MOUNT, "sh"]
    if shutil.which("unshare") is not None and shutil.which("ip") is not None:
        trial = [*prefix, "ip", "link", "add", "name", "bridge", "type", "bridge"]
        if subprocess.run(trial, capture_output=True, check=False).returncode == 0:  # noqa: S603 - fixed words
            sys.stdout.flush()
            os.execvpe(prefix[0], [*prefix, *command], {**os.environ, _IS_SWITCH: "1"})  # noqa: S606 - as above
    return False


class Machines:
    """Network namespaces ``{prefix}-{name}``, each with a cable (a veth pair) to a bridge. ``with`` makes them.

    The bridge is in the namespace of ``switch``, a name too, or in this process's own one if that is empty. Processes
    on the machines are for the caller to end. Raises NoMachinesError where the system, or the user's rights, do not
    suffice.
    """

    def __init__(self, *names: str, switch: str = "") -> None:
        self._prefix, self._switch = f"st{os.getpid()}", switch
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}

    def __enter__(self) -> Self:
        if shutil.which("ip") is None:
            raise NoMachinesError("the command ip (Debian: iproute2) is not there")
        try:
            if self._switch:
                self._ip("netns", "add", self._space(self._switch))
            self._on_switch("link", "add", "name", "bridge", "type", "bridge")
            self._on_switch("link", "set", "dev", "bridge", "up")
            if not self._switch:
                self._on_switch("address", "add", "10.77.0.254/24", "dev", "bridge")
            for name, address in self.addresses.items():
                space = self._space(name)
                self._ip("netns", "add", space)
                self._on_switch("link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", space)
                self._on_switch("link", "set", "dev", name, "master", "bridge")
                self._on_switch("link", "set", "dev", name, "up")
                self._ip("-n", space, "link", "set", "lo", "up")
                self._ip("-n", space, "link", "set", "eth0", "up")
                self._ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in filter(None, (self._switch, *self.addresses)):
            subprocess.run(["ip", "netns", "delete", self._space(name)], capture_output=True, check=False)  # noqa: S603, S607 - no shell

    def on(self, name: str, *command: str) -> list[str]:
        """Return the command line that runs this command on this machine."""
        return ["ip", "netns", "exec", self._space(name), *command]

    def cut(self, name: str) -> None:
        """Pull its cable out: what it sends and is sent is lost, and no connection ends."""
        self._on_switch("link", "set", "dev", name, "down")

    def mend(self, name: str) -> None:
        """Put the cable in again."""
        self._on_switch("link", "set", "dev", name, "up")

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _on_switch(self, *arguments: str) -> None:
        self._ip(*(("-n", self._space(self._switch)) if self._switch else ()), *arguments)

    def _ip(self, *arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607 - as above
        if done.returncode:
            raise NoMachinesError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
