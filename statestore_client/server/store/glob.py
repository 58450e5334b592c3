"""Globs: patterns that stand for many keys.

A pattern is matched against the whole key, both as UTF-8 text; a key that is not UTF-8 never matches. ``*`` stands for
any text, ``?`` for one character, ``[abc]``, ``[a-z]`` and ``[!abc]`` for one character out of or not in a set, ``[*]``
for a literal star.

What stands between two stars is looked for at every place of a key: in a key of a megabyte, that takes up to half a
second. So matching is counted in *steps*, a character of the pattern compared with one of the key, and a long key can
be matched in slices. A set is one such character, with one exception: regular expressions look a character up in a
table of those up to U+FFFF, but compare it with every character and range beyond, so each of these is a step.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import attrs

from statestore_client.errors import RequestSyntaxError

#: Compiling costs more than linear time; no useful pattern is longer than the longest usual key.
MAX_PATTERN_BYTES: Final = 2048

#: Of what stands between two stars, for one place of a key.
MAX_FLOATING_STEPS: Final = 128

_LAST_OF_TABLES: Final = "\uffff"

#: What beginning to look for a piece costs, if its regular expression has to be compiled.
_STEPS_OF_A_PIECE: Final = 20_000


@attrs.frozen
class Progress:
    """How far the match of one key has come: where the first pieces between stars are, and where to look for the next.

    Invariant: it is enough to tell whether a match that goes on from here is one. So a client may be trusted with it:
    one that it made up hides keys from itself, but shows it none that do not match.
    """

    found: tuple[int, ...] = ()
    position: int = 0


@attrs.frozen
class Piece:
    """What stands between two stars, as a regular expression, which matches ``length`` characters and no others.

    To compare it with one place of a key takes at most ``steps``.
    """

    text: str
    length: int
    steps: int


@attrs.frozen
class Glob:
    """A compiled pattern. ``prefix`` is what all matching keys start with; ``literal`` if nothing else can match."""

    pattern: bytes
    prefix: bytes
    literal: bool
    first: Piece
    between: tuple[Piece, ...]
    last: Piece | None  # None without a star
    regex: re.Pattern[str] = attrs.field(repr=False)
    #: For each character of a key, at most this many steps.
    steps_per_character: int
    #: Of a prefix and a star: whether all keys that begin with it match, also those that are not text.
    takes_all: bool = False

    def matches(self, key: bytes) -> bool:
        """Whether the whole key matches, however long it takes."""
        if self.takes_all:
            return key.startswith(self.prefix)
        try:
            return self.regex.fullmatch(key.decode()) is not None
        except UnicodeDecodeError:
            return False

    def match_on(self, key: bytes, progress: Progress | None, steps: int) -> bool | Progress:
        """The same in slices of about this many steps: an answer, or what to go on with.

        Raises RequestSyntaxError if the progress is not from this pattern and key.
        """
        if self.takes_all:
            return self.matches(key)
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return False
        if self.last is None:
            return self.matches(key)
        end = len(text) - self.last.length
        if end < self.first.length or not (_at(self.first, text, 0) and _at(self.last, text, end)):
            return False
        if progress is None:
            progress = Progress((), self.first.length)
        elif not self._holds(progress, text, end):
            raise RequestSyntaxError
        return self._look_on(text, end, progress, steps)

    def _holds(self, progress: Progress, text: str, end: int) -> bool:
        """Whether the pieces are where they are said to be, one after another."""
        found = progress.found
        if len(found) >= len(self.between):
            return False
        ends = [self.first.length, *[start + piece.length for piece, start in zip(self.between, found, strict=False)]]
        starts = (*found, progress.position)
        return (
            all(done <= start for done, start in zip(ends, starts, strict=True))
            and ends[-1] <= end
            and all(_at(piece, text, start) for piece, start in zip(self.between, found, strict=False))
        )

    def _look_on(self, text: str, end: int, progress: Progress, steps: int) -> bool | Progress:
        """Every piece is taken where it is first found and never given back, which is right for globs."""
        found, position = [*progress.found], progress.position
        for piece in self.between[len(found) :]:
            if steps <= 0:
                return Progress(tuple(found), position)
            steps -= _STEPS_OF_A_PIECE
            tries = 1 + max(0, steps) // piece.steps
            stop = min(end, position + tries + piece.length - 1)
            match = _compiled(piece.text).search(text, position, stop)
            if match is None:
                return stop < end and Progress(tuple(found), position + tries)
            steps -= (match.end() - position) * piece.steps
            found.append(match.start())
            position = match.end()
        return True


@lru_cache(maxsize=512)
def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)


def _at(piece: Piece, text: str, position: int) -> bool:
    return _compiled(piece.text).match(text, position) is not None


@lru_cache(maxsize=64)
def compile_glob(pattern: bytes) -> Glob:
    """Read a pattern. Raises RequestSyntaxError for an empty one, no UTF-8, an open bracket, a reversed range, and one
    that is too long as a whole, or takes too many steps between two stars.
    """
    if not 0 < len(pattern) <= MAX_PATTERN_BYTES:
        raise RequestSyntaxError
    try:
        text = pattern.decode()
    except UnicodeDecodeError:
        raise RequestSyntaxError from None
    first, *others = _pieces(text)
    between, last = tuple(piece for piece in others[:-1] if piece.length), others[-1] if others else None
    most_steps = max((piece.steps for piece in between), default=0)
    if most_steps > MAX_FLOATING_STEPS:
        raise RequestSyntaxError
    special = re.search(r"[*?\[]", text)
    prefix = text if special is None else text[: special.start()]
    regex = re.compile(_regex_text(first, between, last), re.DOTALL)
    return Glob(pattern, prefix.encode(), special is None, first, between, last, regex, most_steps)


def _regex_text(first: Piece, between: tuple[Piece, ...], last: Piece | None) -> str:
    """The pieces between the stars, joined.

    Invariant: matching takes time proportional to the key times the most steps of a piece between two stars. Every one
    is taken at its first occurrence and never given back (an atomic group); plain ``.*`` would take exponential time
    for patterns like ``*a*a*a*b``. What comes last is looked for at the end only.
    """
    if last is None:
        return first.text
    tail = f".{{{last.length},}}+(?<={last.text})" if last.length else ".*+"
    return first.text + "".join([f"(?>.*?{piece.text})" for piece in between]) + tail


def _pieces(text: str) -> list[Piece]:
    """The pattern, cut at its stars."""
    pieces = []
    parts: list[str] = []
    steps = position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "*":
            pieces.append(Piece("".join(parts), len(parts), steps))
            parts, steps = [], 0
            continue
        if character == "?":
            part, part_steps = ".", 1
        elif character == "[":
            end = text.find("]", position + 1 + text.startswith("!", position))
            if end < 0:
                raise RequestSyntaxError
            part, part_steps = _character_set(text[position:end])
            position = end + 1
        else:
            part, part_steps = re.escape(character), 1
        parts.append(part)
        steps += part_steps
    return [*pieces, Piece("".join(parts), len(parts), steps)]


def _character_set(body: str) -> tuple[str, int]:
    """As a regular expression, and the steps it takes."""
    negated = body.startswith("!")
    characters = body[negated:]
    parts = []
    beyond_tables = position = 0
    while position < len(characters):
        low = high = characters[position]
        if characters[position + 1 : position + 2] == "-" and position + 2 < len(characters):
            high = characters[position + 2]
            position += 2
        if low > high:
            raise RequestSyntaxError
        parts.append(f"{re.escape(low)}-{re.escape(high)}")
        beyond_tables += high > _LAST_OF_TABLES
        position += 1
    return f"[{'^' if negated else ''}{''.join(parts)}]", max(1, beyond_tables)
