"""Whether a key begins with a match of a pattern, in time that grows with the length of the key and with nothing else.

Each character that the patterns of a filter can take is a *position*, a bit. The automaton (Glushkov's) knows which
positions can be first, which can follow each other, and which can be the last. All that is still possible after some
characters is one integer; nothing is tried twice, so there is nothing that a hostile pattern could make slow.

Source: facts §6.2; ``docs/decisions/0044-patterns-of-keys.md``.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.pattern_syntax import (
    END,
    Alternatives,
    CharacterSet,
    End,
    Node,
    Repetition,
    Sequence,
    parse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_PATTERNS", "MAX_POSITIONS", "Patterns"]

#: Patterns of one filter.
MAX_PATTERNS: Final = 256
#: Characters that the patterns of a filter can take, each repetition counted: ``a{100}`` has 100.
MAX_POSITIONS: Final = 512
#: Steps to put an automaton together: ``(|){1000}`` has no positions.
_MAX_STEPS: Final = 8192
#: Steps from one set of positions to the next that are remembered. The memory of a filter stays below some 300 KiB.
_REMEMBERED: Final = 512
_CHUNK: Final = 4


class Patterns:
    """Patterns, ready for use. Raises InvalidArgumentError for one that is not allowed, or for too many of them.

    All that are more than plain text are one automaton: what a key costs does not grow with their number.
    """

    __slots__ = ("_automaton", "_prefixes", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts: tuple[str, ...] = tuple(texts)
        if len(self.texts) > MAX_PATTERNS:
            raise InvalidArgumentError(f"a filter has at most {MAX_PATTERNS} patterns, not {len(self.texts)}")
        nodes = [parse(text) for text in self.texts]
        literals = [_literal(node) for node in nodes]
        #: What keys begin with, where that is all that a pattern says; most are such.
        self._prefixes = tuple(literal for literal in literals if literal is not None)
        rest = tuple(node for node, literal in zip(nodes, literals, strict=True) if literal is None)
        self._automaton = _Automaton(Alternatives(rest)) if rest else None

    def __bool__(self) -> bool:
        return bool(self.texts)

    def __repr__(self) -> str:
        return f"Patterns({self.texts!r})"

    def match(self, key: str) -> bool:
        """Whether ``key`` begins with a match of one of them."""
        return key.startswith(self._prefixes) or (self._automaton is not None and self._automaton.matches(key))


def _literal(node: Node) -> str | None:
    """The text that a pattern without signs is; most are."""
    items = node.items if isinstance(node, Sequence) else (node,)
    text = ""
    for item in items:
        if not isinstance(item, CharacterSet) or len(item.ranges) != 1 or item.ranges[0][0] != item.ranges[0][1]:
            return None
        text += chr(item.ranges[0][0])
    return text


class _Automaton:
    """Sets of positions are integers, one bit each."""

    def __init__(self, node: Node) -> None:
        self._steps = 0
        self._sets: list[CharacterSet | End] = []
        self._follow: list[int] = []
        self._can_be_empty, self._first, self._last = self._build(node)
        self.positions = len(self._sets)
        self._ends = sum(1 << number for number, item in enumerate(self._sets) if item is END)
        # Between two bounds, all characters are in the same sets.
        sets = [item for item in self._sets if isinstance(item, CharacterSet)]
        self._bounds = sorted({bound for item in sets for first, last in item.ranges for bound in (first, last + 1)})
        self._takes: dict[int, int] = {}  # between which bounds -> the positions that take such a character
        self._after: dict[int, int] = {}  # positions -> those that can follow them
        self._after_chunks = [self._chunk(start) for start in range(0, self.positions, _CHUNK)]

    # -- putting it together -------------------------------------------------------------------------------------------

    def _build(self, node: Node) -> tuple[bool, int, int]:
        """Whether it can be empty, its first and its last positions."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            self._too_large()
        if isinstance(node, CharacterSet | End):
            if len(self._sets) == MAX_POSITIONS:
                self._too_large()
            self._sets.append(node)
            self._follow.append(0)
            position = 1 << len(self._sets) - 1
            return False, position, position
        if isinstance(node, Repetition):
            return self._repetition(node)
        if isinstance(node, Alternatives):
            can_be_empty, first, last = False, 0, 0
            for item in node.items:
                is_empty, item_first, item_last = self._build(item)
                can_be_empty, first, last = can_be_empty or is_empty, first | item_first, last | item_last
            return can_be_empty, first, last
        whole = (True, 0, 0)
        for item in node.items:
            whole = self._then(whole, self._build(item))
        return whole

    def _too_large(self) -> None:
        raise InvalidArgumentError(
            f"the patterns of a filter take at most {MAX_POSITIONS} characters together, repetitions counted"
        )

    def _repetition(self, node: Repetition) -> tuple[bool, int, int]:
        whole = (True, 0, 0)
        for _ in range(node.least):
            whole = self._then(whole, self._build(node.item))
        if node.most is None:
            _, first, last = self._build(node.item)
            self._connect(last, first)
            return self._then(whole, (True, first, last))
        for _ in range(node.most - node.least):
            _, first, last = self._build(node.item)
            whole = self._then(whole, (True, first, last))
        return whole

    def _then(self, one: tuple[bool, int, int], other: tuple[bool, int, int]) -> tuple[bool, int, int]:
        one_empty, one_first, one_last = one
        other_empty, other_first, other_last = other
        self._connect(one_last, other_first)
        first = one_first | other_first if one_empty else one_first
        last = one_last | other_last if other_empty else other_last
        return one_empty and other_empty, first, last

    def _connect(self, before: int, after: int) -> None:
        for number in range(before.bit_length()):
            if before >> number & 1:
                self._follow[number] |= after

    def _chunk(self, start: int) -> list[int]:
        """What follows each set of some neighbouring positions."""
        table = [0]
        for number in range(start, min(start + _CHUNK, self.positions)):
            table += [after | self._follow[number] for after in table]
        return table

    # -- using it ------------------------------------------------------------------------------------------------------

    def matches(self, key: str) -> bool:
        if self._can_be_empty:
            return True
        alive, last, after = self._first, self._last, self._after
        for character in key:
            alive &= self._that_take(character)
            if alive & last:
                return True
            if not alive:
                return False
            following = after.get(alive)
            alive = self._that_follow(alive) if following is None else following
        return self._matches_end(alive)

    def _that_take(self, character: str) -> int:
        code = ord(character)
        between = bisect_right(self._bounds, code)
        takes = self._takes.get(between)
        if takes is None:
            takes = 0
            for number, item in enumerate(self._sets):
                if isinstance(item, CharacterSet) and item.contains(code):
                    takes |= 1 << number
            self._takes[between] = takes
        return takes

    def _that_follow(self, alive: int) -> int:
        following, rest, chunk = 0, alive, 0
        while rest:
            following |= self._after_chunks[chunk][rest & (1 << _CHUNK) - 1]
            rest >>= _CHUNK
            chunk += 1
        if len(self._after) >= _REMEMBERED:
            self._after.clear()
        self._after[alive] = following
        return following

    def _matches_end(self, alive: int) -> bool:
        """At the end of the key, its end can be taken, also several times."""
        seen = 0
        while alive := alive & self._ends & ~seen:
            if alive & self._last:
                return True
            seen |= alive
            alive = self._that_follow(alive)
        return False
