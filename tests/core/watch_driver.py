"""What tests of watches say to a client, and what they expect of it: bytes of the published protocol, and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from machine_driver import MachineDriver, Seen

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.errors import StateStoreError
from statestore_client.wire.hlc import HlcTimestamp

# State store protocol, "KEYNOTIFY": the bytes of the commands and of the notifications.
KEYNOTIFY = b"*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n"
STOP = b"*3\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n$4\r\nSTOP\r\n"
GET = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
DELETED = b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"
OK = b"+OK\r\n"
MISSING = b"$-1\r\n"


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


def told(key: bytes, n: int, text: bytes | None, *, missed: bool = False) -> WatchEvent:
    return WatchEvent(EventKind.DELETE if text is None else EventKind.SET, key, text, version(n), missed)


def event(n: int, text: bytes | None, *, missed: bool = False) -> WatchEvent:
    return told(b"k", n, text, missed=missed)


def payloads(driver: MachineDriver) -> list[bytes]:
    return [p.message.payload for p in driver.on_the_wire]


def watched(driver: MachineDriver, waiter: str = "watch", **options: Any) -> Seen:
    """A watch that stands; with ``initial``, its GET is still on the way."""
    seen = driver.watch(b"k", waiter, **options)
    driver.suback()
    driver.answer(OK)
    return seen


def answer_all(driver: MachineDriver, found: bytes, stamp: tuple[str, str]) -> None:
    """Answer each KEYNOTIFY with OK and each GET with this value, until nothing is sent any more."""
    while driver.on_the_wire:
        if b"KEYNOTIFY" in driver.on_the_wire[0].message.payload:
            driver.answer(OK)
        else:
            driver.answer(found, stamp)


# -- watches on prefixes -----------------------------------------------------------------------------------------------


def command(*words: bytes) -> bytes:
    """A command as an array of blobs (state store protocol, "RESP3")."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def keynotify(key: bytes) -> bytes:
    return command(b"KEYNOTIFY", key)


def stop(key: bytes) -> bytes:
    return command(b"KEYNOTIFY", key, b"STOP")


def get(key: bytes) -> bytes:
    return command(b"GET", key)


def scan(pattern: bytes, *token: bytes) -> bytes:
    return command(b"SCAN", pattern, *token)


def page(keys: Sequence[bytes], token: bytes | None = None) -> bytes:
    """A page of a listing (state store facts, 1.6)."""
    return b"*%d\r\n" % (1 if token is None else 2) + command(*keys) + (command(token)[4:] if token else b"")


def begin(driver: MachineDriver, waiter: str = "w", **options: Any) -> Seen:
    """A watch on what begins with "a/", whose SCAN is on the way."""
    seen = driver.watch_prefix(b"a/", waiter, **options)
    driver.suback()
    return seen


def prefix_watched(driver: MachineDriver, *keys: bytes, **options: Any) -> Seen:
    """A watch on what begins with "a/" that stands; each of the keys has "0", its version 0."""
    seen = begin(driver, "watch", **options)
    driver.answer(page(keys))
    answer_all(driver, value(b"0"), ts(0))
    assert driver.outcome("watch") is None
    return seen


def error_of(seen: Seen) -> StateStoreError:
    error = seen[-1]
    assert isinstance(error, StateStoreError)
    return error
