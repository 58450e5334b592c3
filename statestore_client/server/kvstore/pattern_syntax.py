"""Patterns of keys as they are written: the part of RE2's syntax that an automaton without memory can follow.

===============================  =======================================================================================
``abc``                          these characters; ``\\.`` a character that means something else otherwise
``.``                            any character but a line feed
``[a-z_]``, ``[^/]``             one of these, or none of these; ``\\d \\w \\s \\D \\W \\S`` (ASCII), also in brackets
``\\t \\n \\r \\f \\v \\x2f \\x{2603}``  characters by name or number
``a|b``, ``(a)``, ``(?:a)``      alternatives and groups
``* + ? {2} {2,} {2,5}``         repetition; a further ``?`` is allowed and changes nothing
``^``, ``\\A``                    the beginning, where every pattern begins anyway; only in front
``$``, ``\\z``                    the end of the key
===============================  =======================================================================================

Anything else, such as a reference to a group, ``(?=a)``, ``\\b``, ``(?i)`` or ``a*+``, is an error that says so.
"""

from __future__ import annotations

from typing import Final, NoReturn, TypeAlias

import attrs

from statestore_client.errors import InvalidArgumentError

__all__ = ["END", "MAX_PATTERN", "Alternatives", "CharacterSet", "End", "Node", "Repetition", "Sequence", "parse"]

#: Characters of a pattern. What it may become is limited by :mod:`~statestore_client.server.kvstore.pattern`.
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
