"""What a counter makes of the value of its key. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from statestore_client.errors import InvalidArgumentError

#: Below the 4,300 digits at which ``int()`` refuses a text with a ValueError of its own.
_NUMBER: Final = re.compile(rb"[+-]?\d{1,4000}")


def number_of(key: bytes, value: bytes | None) -> int:
    """The number that a counter's key holds; 0 without a value. Raises InvalidArgumentError for anything else."""
    if value is None:
        return 0
    if not _NUMBER.fullmatch(value):
        name = key[:80].decode("utf-8", "backslashreplace")
        raise InvalidArgumentError(f"the key {name} holds {value[:40]!r}, which is no whole number: it is no counter")
    return int(value)


def adding(key: bytes, amount: int) -> Callable[[bytes | None], str]:
    """The change of the key's value that adds an amount."""
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise InvalidArgumentError(f"amount must be a whole number, not {amount!r}", argument="amount")
    return lambda value: str(number_of(key, value) + amount)
