"""Which changes a watch wants, and finding the watches that want a change without asking them all.

The State Watch pattern walks up the path of each changed key; here every *length* of a watched prefix is looked up
once, so a change costs as many dictionary look-ups as there are different lengths, however many watches there are.

Source: State Watch pattern, "Watches on hierarchical storage".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeAlias, TypeVar

import attrs

from raft_client.errors import InvalidArgumentError
from raft_client.wire.key_changes import Change

W = TypeVar("W")


def _check_bytes(_selector: object, attribute: attrs.Attribute[bytes], value: object) -> None:
    if not isinstance(value, bytes):
        raise InvalidArgumentError(f"{attribute.name} is bytes, not {type(value).__name__}")


@attrs.frozen
class Key:
    """One key. It need not exist."""

    key: bytes = attrs.field(validator=_check_bytes)

    def matches(self, change: Change) -> bool:
        """Whether the change is wanted."""
        return change.key == self.key


@attrs.frozen
class Prefix:
    """Every key that starts with these bytes; ``b""`` is every key."""

    prefix: bytes = attrs.field(validator=_check_bytes)

    def matches(self, change: Change) -> bool:
        """Whether the change is wanted."""
        return change.key.startswith(self.prefix)


@attrs.frozen
class Tree:
    """A key and all below it: ``servers`` has ``servers/1`` below it, but not ``serversets``."""

    path: bytes = attrs.field(validator=_check_bytes)
    separator: bytes = attrs.field(default=b"/", validator=_check_bytes)

    @property
    def below(self) -> bytes:
        """What all keys below start with."""
        return self.path + self.separator

    def matches(self, change: Change) -> bool:
        """Whether the change is wanted."""
        return change.key == self.path or change.key.startswith(self.below)


@attrs.frozen
class Where:
    """Whatever the function says. It is called for every change of every entry, so it should be quick."""

    predicate: Callable[[Change], bool]

    def matches(self, change: Change) -> bool:
        """Whether the change is wanted."""
        return bool(self.predicate(change))


Selector: TypeAlias = Key | Prefix | Tree | Where


class SelectorIndex(Generic[W]):
    """Watches by what they want.

    Invariant: :meth:`candidates` yields each watch at most once, all whose selector matches, and those with a
    predicate, which only they can evaluate.
    """

    __slots__ = ("_all", "_keys", "_lengths", "_prefixes", "_where")

    def __init__(self) -> None:
        self._all: set[W] = set()
        self._keys: dict[bytes, dict[W, None]] = {}
        self._prefixes: dict[bytes, dict[W, None]] = {}
        self._lengths: dict[int, int] = {}  # of prefixes -> how many prefixes have it
        self._where: dict[W, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, watch: W, selector: Selector) -> None:
        """From now on ``watch`` is a candidate for what ``selector`` matches."""
        self._all.add(watch)
        match selector:
            case Key(key=key):
                self._keys.setdefault(key, {})[watch] = None
            case Prefix(prefix=prefix):
                self._add_prefix(watch, prefix)
            case Tree(path=path):
                self._keys.setdefault(path, {})[watch] = None
                self._add_prefix(watch, selector.below)
            case Where():
                self._where[watch] = None

    def discard(self, watch: W, selector: Selector) -> None:
        """No longer; also if it never was."""
        self._all.discard(watch)
        match selector:
            case Key(key=key):
                _discard(self._keys, key, watch)
            case Prefix(prefix=prefix):
                self._discard_prefix(watch, prefix)
            case Tree(path=path):
                _discard(self._keys, path, watch)
                self._discard_prefix(watch, selector.below)
            case Where():
                self._where.pop(watch, None)

    def candidates(self, key: bytes) -> Iterator[W]:
        """The watches that a change of ``key`` concerns."""
        yield from self._keys.get(key, ())
        for length in self._lengths:
            if length <= len(key):
                yield from self._prefixes.get(key[:length], ())
        yield from self._where

    def _add_prefix(self, watch: W, prefix: bytes) -> None:
        if prefix not in self._prefixes:
            self._prefixes[prefix] = {}
            self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
        self._prefixes[prefix][watch] = None

    def _discard_prefix(self, watch: W, prefix: bytes) -> None:
        if _discard(self._prefixes, prefix, watch):
            self._lengths[len(prefix)] -= 1
            if not self._lengths[len(prefix)]:
                del self._lengths[len(prefix)]


def _discard(watches: dict[bytes, dict[W, None]], name: bytes, watch: W) -> bool:
    """Returns whether it was the last one under this name."""
    known = watches.get(name)
    if known is None or watch not in known:
        return False
    del known[watch]
    if known:
        return False
    del watches[name]
    return True
