"""Commands that see the system as a program in a container does, where this system has what that takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

__all__ = ["as_first_process", "as_stranger", "with_mounted_file"]

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
