"""Request ids that name this process, which derived ones do not. See :mod:`raft_client.wire.request_id`."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket

from raft_client.clocks import wall_ns
from raft_client.wire.request_id import RequestId, RequestIdSource


def new_request_id() -> RequestId:
    """An id that no other call makes, in this process or any other. From any thread, and after ``fork()``.

    Host name and process id keep processes apart, a counter with a random start those that share both (containers).
    """
    return _source.next(wall_ns() // 1_000_000_000)


def new_raw_id() -> bytes:
    """As :func:`new_request_id`, its 12 bytes only."""
    return _source.next_raw(wall_ns() // 1_000_000_000)


def _new_source() -> RequestIdSource:
    machine = hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()[:3]
    return RequestIdSource(machine, os.getpid(), secrets.randbelow(2**24))


def _after_fork() -> None:
    global _source
    _source = _new_source()


_source = _new_source()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
