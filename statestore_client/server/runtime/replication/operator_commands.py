"""What people ask a replicated server for: ``statestore ha``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from statestore_client.server.cluster import entries
from statestore_client.server.cluster.roles import Role
from statestore_client.server.runtime.observability.logs import log_event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from statestore_client.server.runtime.replication.lives import Lives

__all__ = ["OperatorCommands"]

#: An entry comes back within a commit.
_FORMAT_S: Final = 2.0
_NO_LEADER: Final = (
    "the log has no leader that this server can reach, so nothing is acknowledged: more than half of the log's peers"
    " must run, and reach each other"
)


class OperatorCommands:
    """Each is carried out, or answered with the reason why not."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._actions: dict[str, Callable[[str], Awaitable[str]]] = {
            "promote": self._promote,
            "hand-over": self._hand_over,
            "snapshot": self._snapshot,
            "trim": self._trim,
            "format": self._format,
        }

    async def carry_out(self, purpose: str, argument: str) -> dict[str, object]:
        """``status``, or one of the others. Returns what the server is then."""
        action = self._actions.get(purpose)
        reason = "" if action is None else await action(argument)
        replica = self._lives.replica
        has_leader, warning = (False, "") if replica is None else await replica.look_at_members()
        if not has_leader:
            warning = _NO_LEADER
        return {
            "done": not reason,
            "reason": reason,
            **self.status(),
            "log_has_leader": has_leader,
            "warning": warning,
        }

    def status(self) -> dict[str, object]:
        """What this server is, and what it knows of the others."""
        lives, replica = self._lives, self._lives.replica
        epoch, active = lives.active
        return {
            "id": lives.id,
            "internal": lives.url,
            "role": lives.role.value,
            "epoch": epoch,
            "active": active,
            "ready": lives.is_ready,
            "awaits_import": replica is not None and replica.awaits_import,
            "format": lives.format,
            "index": lives.index,
            "base": 0 if replica is None else replica.base,
            "log_bytes": 0 if replica is None else replica.log_bytes,
            "silence_s": round(lives.silent_s, 3),
            "clients": lives.clients,
            "passed_on": lives.router.spliced,
            "listeners": lives.listeners,
        }

    async def _promote(self, _argument: str) -> str:
        is_done = self._lives.promote()
        log_event(logging.WARNING, "promotion was asked for", done=is_done)
        return "" if is_done else self._why_not("it is active already" if self._is_active else "")

    async def _hand_over(self, next_id: str) -> str:
        if not self._is_active:
            return self._why_not("it is not active")
        return "" if await self._lives.hand_over(next_id) else "the log did not take it in time"

    async def _snapshot(self, _argument: str) -> str:
        return "" if self._lives.want_snapshot() else self._why_not()

    async def _trim(self, _argument: str) -> str:
        replica = self._lives.replica
        return self._why_not() if replica is None else await replica.trim()

    async def _format(self, argument: str) -> str:
        """Only the active server can: it knows which others there are, and what they know."""
        lives, has, replica = self._lives, self._lives.format, self._lives.replica
        wanted = int(argument) if argument.isdecimal() else 0
        if replica is None or not self._is_active:
            return self._why_not("it is not active: ask the server that is")
        behind = [server_id for server_id, known in lives.formats.items() if known < wanted]
        if wanted > entries.FORMAT:
            return f"it knows formats up to {entries.FORMAT}: upgrade it first"
        if behind:
            return f"{', '.join(behind)} would stop, because of not knowing format {wanted}: upgrade all servers first"
        if wanted < has:
            return f"the log has format {has}, and formats never go back"
        is_done = wanted == has or await replica.raise_format(wanted, _FORMAT_S)
        return "" if is_done else "the log did not take it in time"

    @property
    def _is_active(self) -> bool:
        return self._lives.role is Role.ACTIVE

    def _why_not(self, otherwise: str = "") -> str:
        replica = self._lives.replica
        if replica is not None and replica.awaits_import:
            return "an import into the log is not complete"
        return otherwise or "it has not read the log to its end"
