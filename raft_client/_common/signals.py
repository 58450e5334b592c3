"""Signals that end a server, or tell it to read its files again, on any platform."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping

__all__ = ["handle_signals"]


def handle_signals(handlers: Mapping[str, Callable[[], object]]) -> None:
    """Let the running loop call these at signals, which are named as in :mod:`signal`.

    Windows lacks some of them, and its loops take no handlers: there the interpreter's own hand the call on.
    """
    loop = asyncio.get_running_loop()

    def hand_on(handler: Callable[[], object]) -> Callable[[int, object], None]:
        return lambda _number, _frame: (loop.call_soon_threadsafe(handler), None)[1]

    for name, handler in handlers.items():
        number = getattr(signal, name, None)
        if number is None:
            continue
        try:
            loop.add_signal_handler(number, handler)
        except (AttributeError, NotImplementedError):
            signal.signal(number, hand_on(handler))
