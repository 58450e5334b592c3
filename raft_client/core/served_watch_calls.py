"""What is asked of a leader that serves watches: one call for the session, and one for each watch.

The call of the session is a hello and later, under the same request id, the signs of life. It is repeated like any
question, so it notices a leader that is lost or silent, and finds the next one. The call of a watch is sent once, over
the connection that was greeted; when that is gone, so is the watch.

Invariant: nothing about watches is sent over a connection whose peer has not said that it serves them.
Invariant: each reply is handed on while it is read, so in the order in which they came, over all calls. The end of a
call comes after what was read with it; until then ``is_over`` says that nothing of the leader's concerns it any more.

Source: ``docs/decisions/raft-wire.md``, ``docs/decisions/raft-watches.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs

from raft_client.core.calls import HEARD, Failed, Finished, NotLeader, Verdict
from raft_client.core.selectors import Key, Prefix, Selector, Tree
from raft_client.errors import ProtocolError
from raft_client.wire.client_requests import LogInfoReply, RequestLogInfo
from raft_client.wire.hello import Capability, Hello, hello_in_reply
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import (
    BeginWatch,
    CancelWatch,
    NoSession,
    Seen,
    WatchEnded,
    WatchProgress,
    WatchReply,
    decode_watch_reply,
)

#: The reply to RequestLogInfo has nine frames at least, and those about watches have fewer.
_LOG_INFO_FRAMES: Final = 9
#: Which connection is greeted tells the connection, so the hellos of a client need not differ.
_HELLO: Final = Hello(None, 0).to_request_id()


@attrs.frozen
class Greeting:
    """The leader has answered the hello; ``is_new``: over another connection than the last one."""

    offers: bool
    is_new: bool


SessionReply: TypeAlias = Greeting | WatchProgress | NoSession


class SessionCall:
    """A hello to the leader, and then signs of life. It ends only if the leader does not serve watches.

    ``on_reply`` is called with each reply.
    """

    __slots__ = ("_ident", "_is_new", "_on_reply", "is_greeted", "paused", "request_id")

    repeatable = True
    changes = False
    needs_slot = False
    keeps_slot = False
    has_new_id = True

    def __init__(self, ident: bytes, on_reply: Callable[[SessionCall, SessionReply], None]) -> None:
        self._ident = ident
        self._on_reply = on_reply
        self._is_new = True
        #: Whether the peer at the other end of the present connection has said that it serves watches.
        self.is_greeted: bool = False
        #: Whether the leader owes nothing.
        self.paused: bool = False
        self.request_id: bytes | None = _HELLO

    def frames(self) -> list[bytes]:
        self.paused = False
        return RequestLogInfo(self._ident).to_frames()

    def moved(self) -> None:
        """Another connection: what was learnt held for the last one."""
        self._is_new = True
        self.is_greeted = False

    def seen(self, session: int, messages: int) -> list[bytes]:
        """The frames of a sign of life."""
        self.paused = False
        return Seen(self._ident, session, messages).to_frames()

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        self.paused = True
        if len(frames) >= _LOG_INFO_FRAMES:
            return self._greeted(LogInfoReply.from_frames(frames), hello_in_reply(frames))
        reply = decode_watch_reply(frames)
        if isinstance(reply, WatchProgress) and not reply.leads:
            return NotLeader(None)
        if not isinstance(reply, WatchProgress | NoSession):
            raise ProtocolError("an answer about one watch to the sign of life of all")
        return self._hand_out(reply)

    def _greeted(self, reply: LogInfoReply, hello: Hello | None) -> Verdict:
        if not reply.is_leader:
            return NotLeader(reply.leader_id)
        self.is_greeted = hello is not None and hello.knows(Capability.WATCH)
        greeting, self._is_new = Greeting(self.is_greeted, self._is_new), False
        return self._hand_out(greeting) if self.is_greeted else Finished(greeting)

    def _hand_out(self, reply: SessionReply) -> Verdict:
        self._on_reply(self, reply)
        return HEARD


class ServedWatch:
    """One watch at the leader. Result: why it ended; None when it was not even begun, for lack of a greeting.

    What is wanted of a condition is everything, and of a tree what begins with its path: the client looks again.
    ``on_reply`` is called with each reply but the end.
    """

    __slots__ = ("_ident", "_is_asked", "_on_reply", "_request", "_session", "is_begun", "is_over")

    request_id: bytes | None = None
    repeatable = False
    changes = False
    paused = False
    needs_slot = False
    keeps_slot = False
    has_new_id = True

    def __init__(
        self,
        ident: bytes,
        selector: Selector,
        after: Position | None,
        session: SessionCall,
        on_reply: Callable[[ServedWatch, WatchReply], None],
    ) -> None:
        self._ident = ident
        self._on_reply = on_reply
        match selector:
            case Key(key=key):
                self._request = BeginWatch(ident, key, after=after)
            case Prefix(prefix=prefix) | Tree(path=prefix):
                self._request = BeginWatch(ident, prefix, is_prefix=True, after=after)
            case _:
                self._request = BeginWatch(ident, b"", is_prefix=True, after=after)
        self._session = session
        self._is_asked = False  # it was sent to a peer that serves watches
        #: Whether the leader has said that it has begun.
        self.is_begun: bool = False
        #: Set when the leader has ended the watch, or has sent what cannot be decoded.
        self.is_over: bool = False

    def frames(self) -> list[bytes]:
        """A harmless question if the connection has become another one since it was to be begun."""
        self._is_asked = self._session.is_greeted
        return self._request.to_frames() if self._is_asked else RequestLogInfo(self._ident).to_frames()

    def moved(self) -> None:
        """It is sent once."""

    def cancel(self) -> list[bytes] | None:
        """The frames that end it, which are answered. None if it was not begun: the answer to the question ends it."""
        return CancelWatch(self._ident).to_frames() if self._is_asked else None

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        if len(frames) >= _LOG_INFO_FRAMES:
            return Finished(None)
        try:
            reply = decode_watch_reply(frames)
        except ProtocolError as error:
            self.is_over = True
            return Failed(error, last=self.cancel())
        if isinstance(reply, WatchEnded):
            self.is_over = True
            return Finished(reply)
        self._on_reply(self, reply)
        return HEARD
