"""The vocabulary of multi-step work: a generator yields steps, a shell takes them and sends the answers back.

Work that both shells do alike (acquire a lock, renew it, edit a key under it) is written once, as such a generator.
Each shell has one small driver for it: ``sync.steps`` and ``aio.steps``.

Times are seconds on a clock that only grows and goes on while the machine sleeps.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

import attrs

from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp


@attrs.frozen
class Invoke:
    """Send a command; the answer's value is its result. Its errors are raised inside the generator.

    ``undo`` takes back what the command did. The driver posts it when the steps end with an error, or are cancelled,
    while nobody can tell whether the command was applied. A ``lasting`` command leaves also if the steps are cancelled
    before it could be sent: it gives something back.
    """

    command: Command
    timeout: float  # seconds
    fencing_token: HlcTimestamp | None = None
    undo: Command | None = None
    lasting: bool = False


@attrs.frozen
class SendUnawaited:
    """Send a command whose answer matters little: errors are dropped, and the wait is short.

    It gives something back: it is sent even if the wait is over before, or the steps are cancelled.
    """

    command: Command


@attrs.frozen
class Pause:
    """Wait. Before another attempt, a client that is closed for good raises why, inside the generator."""

    seconds: float
    before_retry: bool = False


@attrs.frozen
class StartWatch:
    """Watch a key from now on, until the steps end. Its errors are raised inside the generator."""

    key: bytes
    timeout: float  # seconds, until the watch stands


@attrs.frozen
class WaitForChange:
    """Wait for the next event of the observed key; the answer's value is the event, or None after ``seconds``."""

    seconds: float


Step: TypeAlias = Invoke | SendUnawaited | Pause | StartWatch | WaitForChange


@attrs.frozen
class Answer:
    """What a step came to, and when it began and ended (seconds)."""

    value: Any
    started: float
    finished: float


Steps: TypeAlias = Generator[Step, Answer, Any]
