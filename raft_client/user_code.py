"""Codecs and conditions of watches: the user's code that runs inside the client's own work.

They are called while an entry is shared out, which nothing may interrupt: the client is locked, or in the middle of a
turn of its event loop. One that calls the client would wait for itself. It gets :class:`BusyError` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TypeVar

from raft_client.core.selectors import Selector, Where
from raft_client.errors import BusyError
from raft_client.wire.key_changes import Change, EntryCodec

A = TypeVar("A")
R = TypeVar("R")


class UserCode:
    """Knows whether the user's code is running, and in which thread."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread: int | None = None

    def check(self) -> None:
        """Raises BusyError when it is the user's code that calls."""
        if self._thread is not None and self._thread == get_ident():
            raise BusyError(
                "a codec or condition of a watch may not use its client, because the client waits for it; "
                "do it where the events are handled, or in a callback"
            )

    def run(self, function: Callable[[A], R], argument: A) -> R:
        """Call the user's code; only one thread at a time does."""
        self._thread = get_ident()
        try:
            return function(argument)
        finally:
            self._thread = None

    def codec(self, codec: EntryCodec) -> EntryCodec:
        """The same codec, noticed when it runs."""
        return _Codec(self, codec)

    def selector(self, selector: Selector) -> Selector:
        """The same selector, noticed when its condition runs."""
        if not isinstance(selector, Where):
            return selector
        predicate = selector.predicate
        return Where(lambda change: self.run(predicate, change))


class _Codec:
    __slots__ = ("_codec", "_user_code")

    def __init__(self, user_code: UserCode, codec: EntryCodec) -> None:
        self._user_code = user_code
        self._codec = codec

    def decode(self, data: bytes) -> Sequence[Change]:
        return self._user_code.run(self._codec.decode, data)
