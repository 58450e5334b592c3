"""What tests of watches on prefixes send and expect: frames written out by hand, and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from machine_driver import MachineDriver, Seen
from watch_driver import OK, ts, value, version

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.errors import (
    StateStoreError,
)


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


def told(key: bytes, n: int, text: bytes | None, *, missed: bool = False) -> WatchEvent:
    return WatchEvent(EventKind.DELETE if text is None else EventKind.SET, key, text, version(n), missed)


def watched(driver: MachineDriver, *keys: bytes, **options: Any) -> Seen:
    """A watch on what begins with "a/" that stands; each of the keys has "0", its version 0."""
    seen = driver.watch_prefix(b"a/", "watch", **options)
    driver.suback()
    driver.answer(page(keys))
    for _ in keys:
        driver.answer(OK)
    for _ in keys:
        driver.answer(value(b"0"), ts(0))
    assert driver.outcome("watch") is None
    return seen


def error_of(seen: Seen) -> StateStoreError:
    error = seen[-1]
    assert isinstance(error, StateStoreError)
    return error
