"""What a viewer may do, if the server was started so: end a session, delete a key, break a lock.

Each action is logged with the user that did it. A key goes as with a DEL of a client that has its fencing token: those
that watch it hear of it, and it is on the disk. Breaking a lock is deleting its key: whoever waits gets it, and its
former holder's writes are refused as soon as the next holder has written.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.monitor.samples import shown
from statestore_client.server.runtime.observability.event_log import log_event
from statestore_client.server.store import RequestContext
from statestore_client.wire.commands import Del
from statestore_client.wire.replies import COUNT_1, Refused

if TYPE_CHECKING:
    from statestore_client.server.runtime.monitor.access import Viewer
    from statestore_client.server.runtime.monitor.questions import ServerParts
    from statestore_client.server.runtime.monitor.tap import Tap

__all__ = ["Actions"]

#: As a client identifier, in the changes of a key.
_WHO: Final = "(monitor)"


@attrs.frozen(eq=False)
class Actions:
    """Of the active server, whose parts they are now. Raises InvalidArgumentError for what cannot be done."""

    _parts: ServerParts
    _tap: Tap

    def carry_out(self, body: bytes, viewer: Viewer, peer: str) -> dict[str, Any]:
        """``{"action": "end session" | "delete key", "what": client identifier or key in hexadecimal}``."""
        try:
            asked = json.loads(body)
            action, what = str(asked["action"]), str(asked["what"])
            what.encode()  # a lone surrogate is no character
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidArgumentError('an action is {"action": ..., "what": ...}') from None
        active = self._parts.active()
        if active is not None:
            ask = f"ask the active one, {active}" if active else "nobody is active at the moment"
            raise InvalidArgumentError(f"this server stands by: {ask}")
        if action == "end session":
            is_done, name = self._end_session(what), what
        elif action == "delete key":
            key = _key(what)
            is_done, name = self._delete(key, viewer), shown(key)
        else:
            raise InvalidArgumentError("there is no such action")
        log_event(
            logging.WARNING, "monitor action", action=action, what=name, done=is_done, user=viewer.user, peer=peer
        )
        self._tap.note("action", client=viewer.user or "somebody", text=f"{action} {name}")
        return {"done": is_done}

    def _end_session(self, client_id: str) -> bool:
        broker = self._parts.broker()
        removal = broker.control.remove_sessions([client_id], force=True)
        broker.perform((), self._parts.clock())
        self._parts.flush()
        return bool(removal.removed)

    def _delete(self, key: bytes, viewer: Viewer) -> bool:
        if viewer.permissions is not None and not viewer.permissions.may_run(Del(key)):
            raise InvalidArgumentError(f"the server's access rules do not let {viewer.user} write this key")
        if self._parts.service().is_read_only(key):
            raise InvalidArgumentError("another site says what is there")
        store, now = self._parts.store(), self._parts.clock()
        entry = store.entry(key, now)
        outcome = store.apply(Del(key), RequestContext(_WHO, None, None if entry is None else entry.fence, now))
        if isinstance(outcome.reply, Refused):
            raise InvalidArgumentError(outcome.reply.error.message)
        self._parts.broker().perform(self._parts.service().announce(outcome.changes), now)
        self._parts.flush()
        return outcome.reply is COUNT_1


def _key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgumentError("keys are in hexadecimal here") from None
