"""The secret of a cluster is changed: its file goes from step to step, and each server follows when it starts again.

::

    one --new--> the second comes --all have it--> the second goes --all use the other--> one
    old          old, new                          new, old                               new

A server uses the first secret of its file, and accepts each (:mod:`.internal`); its peer of the log has the keys that
are made from the first one, and lets in those that are made from either.

Invariant: no step is made before all servers have made the one before. So each server's first secret is among those of
any other at any time, and a restart of one is all that the others notice.

The file is the only state: it is replaced at once or not at all, so whatever ends the command, it is given again.
"""

from __future__ import annotations

import base64
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raft_client._common.durable_files import replace_file
from statestore_client.errors import SettingsError
from statestore_client.server.runtime.replication.internal import (
    SECOND_COMES,
    SECOND_GOES,
    ClusterSecret,
    secrets_in,
)
from statestore_client.server.runtime.replication.settings import ReplicaSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECRET_BYTES: Final = 32
_RESTART: Final = (
    "copy it to each machine and restart the servers, one at a time, the next one when ha status ends with 0; then "
    "give this command again"
)


class SecretRotation:
    """Of the file with the secret, as it is now. Raises SettingsError if it cannot be used."""

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file).resolve()
        self._key = ReplicaSettings.key_in(self._file)
        #: What there is to do after the last step.
        self.advice: str = "no change of the secret is under way, and all servers have this one; --new begins one"

    @property
    def _step(self) -> str:
        head = self._key.partition(b"\n")[0] + b"\n"
        return "comes" if head == SECOND_COMES else "goes" if head == SECOND_GOES else "one"

    @property
    def _fingerprints(self) -> list[str]:
        return ClusterSecret(self._key).fingerprints

    def as_json(self) -> dict[str, object]:
        """Where it stands."""
        return {"file": str(self._file), "step": self._step, "secrets": self._fingerprints}

    def why_not(self, statuses: Sequence[dict[str, Any]], *, begins: bool) -> str:
        """Why these servers are not ready for the next step, in words; nothing if they are."""
        if begins and self._step != "one":
            return "a change of the secret is under way already: give this command without --new"
        if older := [status["id"] for status in statuses if "secrets" not in status]:
            return f"{', '.join(older)}: of a release that knows one secret only; upgrade first"
        known = {status["id"] for status in statuses}
        if others := sorted({each for status in statuses for each in status["listeners"]} - known):
            return f"{', '.join(others)}: not among these addresses: name those of all servers"
        if not any(status["role"] == "active" for status in statuses):
            return "no server is active; see statestore ha status"
        if leaderless := [status["id"] for status in statuses if not status["log_has_leader"]]:
            return f"the log has no leader that {', '.join(leaderless)} can reach; see statestore ha status"
        if behind := [status["id"] for status in statuses if status["secrets"] != self._fingerprints]:
            names = ",".join(self._fingerprints)
            return f"{', '.join(behind)}: not started with this {self._file} yet, which has {names}; {_RESTART}"
        return ""

    def go_on(self, *, begins: bool) -> None:
        """Make the next step, if there is one: write the file. Raises SettingsError."""
        found = secrets_in(self._key)
        if self._step == "comes":
            old, new = found
            self._write(_two(SECOND_GOES, new, old), f"2 of 3: {self._file} has the new secret first")
        elif self._step == "goes":
            self._write(found[0] + b"\n", f"3 of 3: {self._file} has the new secret alone")
        elif begins:
            new = base64.b64encode(secrets.token_bytes(_SECRET_BYTES))
            self._write(_two(SECOND_COMES, found[0], new), f"1 of 3: {self._file} has a new secret beside the old one")

    def _write(self, key: bytes, done: str) -> None:
        try:
            replace_file(self._file, key)
        except OSError as error:
            raise SettingsError(f"{self._file} cannot be written: {error.strerror or error}") from error
        self._key = key.strip()
        self.advice = f"{done}: {_RESTART}"


def _two(head: bytes, first: bytes, second: bytes) -> bytes:
    return head + base64.b64encode(first) + b"\n" + base64.b64encode(second) + b"\n"
