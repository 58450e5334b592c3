"""What tests of watches say to a client, and what they expect of it: bytes of the published protocol, and events."""

from __future__ import annotations

from machine_driver import MachineDriver, Seen

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.wire.hlc import HlcTimestamp

__all__ = [
    "DELETED",
    "GET",
    "KEYNOTIFY",
    "OK",
    "STOP",
    "event",
    "payloads",
    "ts",
    "value",
    "version",
    "was_set",
    "watched",
]

# State store protocol, "KEYNOTIFY": the bytes of the commands and of the notifications.
KEYNOTIFY = b"*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n"
STOP = b"*3\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n$4\r\nSTOP\r\n"
GET = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
DELETED = b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"
OK = b"+OK\r\n"


def version(n: int) -> HlcTimestamp:
    return HlcTimestamp(1_700_000_000_000 + n, 0, "S")


def ts(n: int) -> tuple[str, str]:
    return ("__ts", str(version(n)))


def value(text: bytes) -> bytes:
    """The answer to a GET."""
    return b"$%d\r\n%s\r\n" % (len(text), text)


def was_set(text: bytes) -> bytes:
    """The notification of a SET."""
    return b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$%d\r\n%s\r\n" % (len(text), text)


def event(n: int, text: bytes | None, *, missed: bool = False) -> WatchEvent:
    kind = EventKind.DELETE if text is None else EventKind.SET
    return WatchEvent(kind, b"k", text, version(n), missed)


def payloads(driver: MachineDriver) -> list[bytes]:
    return [p.message.payload for p in driver.on_the_wire]


def watched(driver: MachineDriver, waiter: str = "watch", *, initial: bool = False) -> Seen:
    """A watch that stands; with ``initial``, its GET is still on the way."""
    seen = driver.watch(b"k", waiter, initial=initial)
    driver.suback()
    driver.answer(OK)
    return seen
