"""What becomes of an entry that arrives: the two decision tables. (facts §2.2)

The first line that holds decides; *current* is what is stored under the key.

A. The entry carries a value

==  =====================================  ===================
A1  version <= 0                           OLD_VERSION
A2  version < current                      OLD_VERSION
A3  version > current, or none is stored   REPLACE
A4  originator > current                   REPLACE
A5  originator < current                   NO_NEED_TO_UPDATE
A6  value > current                        REPLACE, even with a lower TTL version
A7  value < current                        NO_NEED_TO_UPDATE, even with a higher TTL version
A8  TTL version > current                  UPDATE_TTL
A9  otherwise                              NO_NEED_TO_UPDATE
==  =====================================  ===================

B. It carries none, and refreshes the TTL

==  =====================================  ==================================================
B1  none is stored                         INCONSISTENCY_DETECTED from its originator itself,
B2  version differs                        else NO_NEED_TO_UPDATE
B3  originator differs
B4  TTL version > current                  UPDATE_TTL
B5  otherwise                              NO_NEED_TO_UPDATE
==  =====================================  ==================================================

REPLACE takes the whole entry. UPDATE_TTL takes TTL and TTL version only; the value and its hash stay.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from statestore_client.wire.kvstore.value import NoMergeReason

if TYPE_CHECKING:
    from statestore_client.wire.kvstore.value import Value

__all__ = ["Decision", "Update", "decide"]


class Update(Enum):
    """What of an entry is taken."""

    REPLACE = "replace"
    UPDATE_TTL = "update TTL"


Decision: TypeAlias = Update | NoMergeReason

# Looking a member up in its class takes longer than a comparison of the tables.
_REPLACE: Final = Update.REPLACE
_UPDATE_TTL: Final = Update.UPDATE_TTL
_OLD_VERSION: Final = NoMergeReason.OLD_VERSION
_NO_NEED: Final = NoMergeReason.NO_NEED_TO_UPDATE
_INCONSISTENCY: Final = NoMergeReason.INCONSISTENCY_DETECTED


def decide(entry: Value, current: Value | None, sender: str | None) -> Decision:
    """``sender``: the site that ``entry`` came from directly; None if a client of this site sent it."""
    value = entry.value
    if value is None:
        return _without_value(entry, current, sender)
    version = entry.version
    if version <= 0:
        return _OLD_VERSION
    if current is None or version > current.version:
        return _REPLACE
    if version < current.version:
        return _OLD_VERSION
    if entry.originator != current.originator:
        return _REPLACE if entry.originator > current.originator else _NO_NEED
    stored = current.value
    if value != stored:
        # What is stored has a value.
        return _REPLACE if stored is None or value > stored else _NO_NEED
    return _UPDATE_TTL if entry.ttl_version > current.ttl_version else _NO_NEED


def _without_value(entry: Value, current: Value | None, sender: str | None) -> Decision:
    if current is None or entry.version != current.version or entry.originator != current.originator:
        return _INCONSISTENCY if sender == entry.originator else _NO_NEED
    return _UPDATE_TTL if entry.ttl_version > current.ttl_version else _NO_NEED
