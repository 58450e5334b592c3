"""What an entry does to a keyspace, as far as a codec can tell. Source: State Watch pattern, "WatchEvent"."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import attrs

from raft_client.wire.frames import hot_value


class ChangeKind(StrEnum):
    """What happened to a key."""

    SET = "set"  # it was created or changed
    DELETE = "delete"  # it was removed, or was not there


@hot_value
class Previous:
    """What a key had before a change; ``value`` is None when it did not exist."""

    value: bytes | None = attrs.field(default=None, repr=False)


@hot_value
class Change:
    """One change of one key; ``value`` is None when it was deleted.

    ``previous`` is what watches with ``previous=True`` know of the key before the change; None: nothing is known.
    """

    kind: ChangeKind
    key: bytes
    value: bytes | None = attrs.field(default=None, repr=False)
    previous: Previous | None = attrs.field(default=None, repr=False)


class EntryCodec(Protocol):
    """Reads what *your* clients append. It must not keep state: entries of different watches come in any order."""

    def decode(self, data: bytes) -> Sequence[Change]:
        """The changes in the data of one entry; none when the entry is not in this format.

        Raise ValueError (or :class:`~raft_client.errors.ProtocolError`) when it is yours and cannot be read: the
        watches that would need it end with a ProtocolError, for they could not tell what they missed.
        """
        ...
