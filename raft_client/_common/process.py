"""What a process that is a server does first, on any platform: handle signals, and take as many files as it may."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress


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


def raise_file_limit() -> None:
    """Take as many open files as the system allows without asking: every connection is one.

    The usual 1,024 are for programs that use select().
    """
    try:
        import resource
    except ImportError:  # not a Unix system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS knows a lower limit that it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
