"""The members of a group, as the events of a watch on its keys tell them. Pure.

A member is a lock of its own, ``GROUP/NAME``: the key holds who holds it, and is gone when the member leaves, or when
its lease has ended. Renewals, which are events as well, change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.errors import InvalidArgumentError


@attrs.frozen
class Roster:
    """The members of a group, each name with its holder. A name that is taken again has another holder.

    ``is_current`` is False while the connection is down: there may be others meanwhile.
    """

    members: Mapping[str, bytes]
    is_current: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """In order: the same one for all who see the same members."""
        return tuple(sorted(self.members))


def prefix_of(group: str) -> str:
    """What the keys of the members begin with. Raises InvalidArgumentError."""
    if not isinstance(group, str) or not group:
        raise InvalidArgumentError(f"the name of a group must be a text, not {group!r}", argument="group")
    return f"{group}/"


#: What keeps a character of a prefix from standing for others in a pattern.
_LITERAL: Final = {ord(character): f"[{character}]" for character in "*?["}


def pattern_of(group: str) -> str:
    """The pattern of the keys of its members."""
    return prefix_of(group).translate(_LITERAL) + "*"


def key_of(group: str, name: str) -> str:
    """The key of a member. Raises InvalidArgumentError for a name that no listing could tell from others."""
    if not isinstance(name, str) or not name or "/" in name:
        raise InvalidArgumentError(f"the name of a member must be a text without '/', not {name!r}", argument="name")
    return prefix_of(group) + name


def name_in(group: str, key: bytes) -> str | None:
    """The member whose key this is; None if it is none's."""
    prefix = prefix_of(group).encode()
    if not key.startswith(prefix):
        return None
    try:
        name = key[len(prefix) :].decode()
    except UnicodeDecodeError:
        return None
    return name if name and "/" not in name else None


class RosterView:
    """Makes rosters of the events of a watch, and says which event changed the roster."""

    __slots__ = ("_group", "roster")

    def __init__(self, group: str) -> None:
        self._group = group
        self.roster: Roster = Roster({})

    def changed(self, event: WatchEvent) -> bool:
        """Whether it makes another roster of it."""
        before, members = self.roster, dict(self.roster.members)
        name, is_current = name_in(self._group, event.key), before.is_current
        match event.kind:
            case EventKind.SET if name is not None and event.value is not None:
                members[name] = event.value
            case EventKind.DELETE if name is not None:
                members.pop(name, None)
            case EventKind.SUSPENDED | EventKind.RESUMED:
                is_current = event.kind is EventKind.RESUMED
        self.roster = Roster(members, is_current)
        return self.roster != before
