"""Whether a key begins with a match of a pattern, in time that grows with the length of the key and with nothing else.

Each character that the patterns of a filter can take is a *position*, a bit. The automaton (Glushkov's) knows which
positions can be first, which can follow each other, and which can be the last. All that is still possible after some
characters is one integer; nothing is tried twice, so there is nothing that a hostile pattern could make slow.

Why an engine of its own: patterns come from other sites and from clients, and Python's ``re`` tries again and again.
No limit on lengths helps: ``(.*)*,(.*)*;$``, 13 characters that no rule here was made for, takes ``re`` 2.5 s for a key
of 20 characters and a minute for one of 24, and holds the interpreter's lock meanwhile; here they take 40 µs, and a key
of 1,000 takes 0.3 ms. With RE2 as an optional dependency, sites of one mesh would answer the same filter or not,
depending on what is installed.

Source: facts §6.2; ``docs/decisions/sites.md``.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import attrs

from statestore_client.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.wire.kvstore.value import Value

# -- pattern syntax ----------------------------------------------------------------------------------------------------
#
# Patterns of keys as they are written: the part of RE2's syntax that an automaton without memory can follow.
#
# ===============================  =====================================================================================
# ``abc``                          these characters; ``\.`` a character that means something else otherwise
# ``.``                            any character but a line feed
# ``[a-z_]``, ``[^/]``             one of these, or none of these; ``\d \w \s \D \W \S`` (ASCII), also in brackets
# ``\t \n \r \f \v \x2f \x{2603}``  characters by name or number
# ``a|b``, ``(a)``, ``(?:a)``      alternatives and groups
# ``* + ? {2} {2,} {2,5}``         repetition; a further ``?`` is allowed and changes nothing
# ``^``, ``\A``                    the beginning, where every pattern begins anyway; only in front
# ``$``, ``\z``                    the end of the key
# ===============================  =====================================================================================
#
# Anything else, such as a reference to a group, ``(?=a)``, ``\b``, ``(?i)`` or ``a*+``, is an error that says so.


#: Characters of a pattern. What it may become is limited by :mod:`~statestore_client.server.kvstore.patterns`.
MAX_PATTERN: Final = 512
#: Groups in groups: the parser calls itself.
_MAX_DEPTH: Final = 32
_MAX_REPEAT: Final = 1000

_LAST: Final = 0x10FFFF
_Ranges: TypeAlias = tuple[tuple[int, int], ...]


@attrs.frozen
class CharacterSet:
    """One character of these: ranges of code points, both ends included, ascending and apart."""

    ranges: _Ranges

    def contains(self, code: int) -> bool:
        """For a code point."""
        return any(first <= code <= last for first, last in self.ranges)


@attrs.frozen
class End:
    """The end of the key, in place of a character."""


END: Final = End()


@attrs.frozen
class Sequence:
    """One after the other."""

    items: tuple[Node, ...]


@attrs.frozen
class Alternatives:
    """One of them."""

    items: tuple[Node, ...]


@attrs.frozen
class Repetition:
    """``most`` is None for any number."""

    item: Node
    least: int
    most: int | None


Node: TypeAlias = CharacterSet | End | Sequence | Alternatives | Repetition


def _complement(ranges: _Ranges) -> _Ranges:
    gaps, start = [], 0
    for first, last in ranges:
        if start < first:
            gaps.append((start, first - 1))
        start = last + 1
    return (*gaps, (start, _LAST)) if start <= _LAST else tuple(gaps)


def _united(ranges: list[tuple[int, int]]) -> _Ranges:
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


_DIGIT: Final[_Ranges] = ((0x30, 0x39),)
_WORD: Final[_Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final[_Ranges] = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
_CLASSES: Final[dict[str, _Ranges]] = {
    "d": _DIGIT, "w": _WORD, "s": _SPACE,
    "D": _complement(_DIGIT), "W": _complement(_WORD), "S": _complement(_SPACE),
}  # fmt: skip
_CONTROLS: Final = {"a": 0x07, "t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_DOT: Final = CharacterSet(_complement(((0x0A, 0x0A),)))
_HEX: Final = frozenset("0123456789abcdefABCDEF")


def parse(text: str) -> Node:
    """The structure of a pattern. Raises InvalidArgumentError, which says what is wrong and where."""
    if len(text) > MAX_PATTERN:
        raise InvalidArgumentError(f"a pattern of {len(text)} characters; {MAX_PATTERN} are allowed")
    parser = _Parser(text)
    node = parser.alternatives(is_front=True)
    if parser.at < len(text):
        parser.fail("a ) without a (")
    return node


class _Parser:
    """Recursive descent: alternatives of sequences of repeated atoms."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self._depth = 0
        self._anchor = -1  # where the last ^ was

    def fail(self, reason: str) -> NoReturn:
        raise InvalidArgumentError(f"pattern {self._text!r}, character {self.at + 1}: {reason}")

    def _peek(self) -> str:
        """The next character, or nothing at the end."""
        return self._text[self.at : self.at + 1]

    def _take(self) -> str:
        character = self._peek()
        self.at += 1
        return character

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self.at)
        if found:
            self.at += len(text)
        return found

    def alternatives(self, *, is_front: bool) -> Node:
        """``is_front``: nothing can stand before this, so a ^ changes nothing."""
        items = [self._sequence(is_front=is_front)]
        while self._skip("|"):
            items.append(self._sequence(is_front=is_front))
        return items[0] if len(items) == 1 else Alternatives(tuple(items))

    def _sequence(self, *, is_front: bool) -> Node:
        items: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            if self._skip("^") or self._skip("\\A"):
                if items or not is_front:
                    self.fail("the beginning of a key is only in front of a pattern")
                self._anchor = self.at - 1
                continue
            items.append(self._repeated(is_front=is_front and not items))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _repeated(self, *, is_front: bool) -> Node:
        start = self.at
        node = self._atom(is_front=is_front)
        times = self._times()
        if times is None:
            return node
        if node is END:
            self.fail("the end of a key cannot be repeated")
        if self._anchor >= start:
            self.fail("the beginning of a key cannot be repeated")
        self._skip("?")  # how much a repetition takes first makes no difference to whether there is a match
        if self._peek() in ("*", "+", "?") or self._times() is not None:
            self.fail("a repetition of a repetition")
        return Repetition(node, *times)

    def _times(self) -> tuple[int, int | None] | None:
        for sign, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(sign):
                return times
        if self._peek() != "{":
            return None
        end = self._text.find("}", self.at)
        inside = self._text[self.at + 1 : end] if end >= 0 else ""
        least, comma, most = inside.partition(",")
        if not _is_number(least) or (most and not _is_number(most)):
            self.fail("a { is followed by one number or two, as in {2}, {2,} and {2,5}; write \\{ for the character")
        low = int(least)
        high = (int(most) if most else None) if comma else low
        if low > _MAX_REPEAT or (high or 0) > _MAX_REPEAT or (high is not None and high < low):
            self.fail(f"a repetition is from a number to one that is not lower, up to {_MAX_REPEAT}")
        self.at = end + 1
        return low, high

    def _atom(self, *, is_front: bool) -> Node:
        character = self._take()
        if character == "(":
            return self._group(is_front=is_front)
        if character == "[":
            return self._brackets()
        if character == ".":
            return _DOT
        if character == "$":
            return END
        if character == "\\":
            if self._skip("z"):
                return END
            return CharacterSet(self._escape())
        if character in ("*", "+", "?", "{"):
            self.at -= 1
            self.fail("there is nothing to repeat")
        return CharacterSet(((ord(character), ord(character)),))

    def _group(self, *, is_front: bool) -> Node:
        if self._peek() == "?" and not self._skip("?:"):
            self.fail("of groups that begin with ?, only (?:...) is known")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self.fail(f"more than {_MAX_DEPTH} groups in each other")
        node = self.alternatives(is_front=is_front)
        if not self._skip(")"):
            self.fail("a ( without a )")
        self._depth -= 1
        return node

    def _escape(self) -> _Ranges:
        """What is after a backslash."""
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _CONTROLS:
            return ((_CONTROLS[character], _CONTROLS[character]),)
        if character == "x":
            code = self._number()
            return ((code, code),)
        if not character or (character.isascii() and character.isalnum()) or character == "_":
            self.fail(f"\\{character} is not known here")
        return ((ord(character), ord(character)),)

    def _number(self) -> int:
        """Two hexadecimal digits, or some in braces."""
        if self._skip("{"):
            end = self._text.find("}", self.at)
            digits = self._text[self.at : end] if end >= 0 else ""
            self.at = end + 1 if end >= 0 else self.at
        else:
            digits = self._text[self.at : self.at + 2]
            self.at += 2
            digits = digits if len(digits) == 2 else ""
        if not 0 < len(digits) <= 6 or not _HEX.issuperset(digits) or int(digits, 16) > _LAST:
            self.fail("\\x is followed by two hexadecimal digits, or by a number in braces up to 10ffff")
        return int(digits, 16)

    def _brackets(self) -> CharacterSet:
        is_negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or self._peek() != "]":
            if not self._peek():
                self.fail("a [ without a ]")
            is_first = False
            ranges.extend(self._range())
        self.at += 1
        united = _united(ranges)
        return CharacterSet(_complement(united) if is_negated else united)

    def _range(self) -> _Ranges:
        if self._peek() == "[" and self._text[self.at + 1 : self.at + 2] == ":":
            self.fail("classes such as [:alpha:] are not known; write [a-zA-Z]")
        first = self._member()
        if self._peek() != "-" or self._text[self.at + 1 : self.at + 2] in ("]", ""):
            return first
        self.at += 1
        last = self._member()
        if len(first) != 1 or len(last) != 1 or first[0][0] != first[0][1] or last[0][0] != last[0][1]:
            self.fail("a range is from one character to another")
        if last[0][0] < first[0][0]:
            self.fail("a range is from a character to one that is not lower")
        return ((first[0][0], last[0][0]),)

    def _member(self) -> _Ranges:
        character = self._take()
        return self._escape() if character == "\\" else ((ord(character), ord(character)),)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


# -- pattern -----------------------------------------------------------------------------------------------------------


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


# -- key filter --------------------------------------------------------------------------------------------------------
#
# Which keys a reader wants: patterns of keys, originators, or both. (facts §6.2)


_MAX_ORIGINATORS: Final = 10_000


class KeyFilter:
    """Entries whose key begins with a match of one of the patterns, or that have one of the originators.

    With ``match_all`` both must hold. A side that is empty does not count; a filter without both lets everything pass.
    Raises InvalidArgumentError for a pattern that :mod:`~statestore_client.server.kvstore.patterns` does not
    allow, where Open/R would let every key pass.
    """

    __slots__ = ("_match_all", "_originators", "_patterns", "is_open")

    def __init__(
        self, patterns: Iterable[str] = (), originators: Iterable[str] = (), *, match_all: bool = False
    ) -> None:
        self._patterns = Patterns(patterns)
        self._originators = frozenset(originators)
        if len(self._originators) > _MAX_ORIGINATORS:
            raise InvalidArgumentError(f"a filter has at most {_MAX_ORIGINATORS} originators")
        self._match_all = match_all
        #: Everything passes.
        self.is_open: bool = not self._patterns and not self._originators

    def matches(self, key: str, entry: Value) -> bool:
        """Whether an entry passes."""
        if self.is_open:
            return True
        if not self._originators:
            return self._patterns.match(key)
        is_from_one = entry.originator in self._originators
        if not self._patterns:
            return is_from_one
        if self._match_all:
            return is_from_one and self._patterns.match(key)
        return is_from_one or self._patterns.match(key)

    def matches_key(self, key: str) -> bool:
        """Whether a key passes of which there is no entry any more: without patterns, all do."""
        return not self._patterns or self._patterns.match(key)


#: Lets everything pass.
ALL_KEYS: Final = KeyFilter()
