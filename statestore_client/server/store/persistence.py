"""Which SETs are written down, on a server that writes anything down.

==============  =====================================================================================================
``all``         every SET: the default
``asked``       a SET that is marked with the user property ``aio-persistence: true`` (state store facts, 1.1)
a pattern       a SET of a key that matches this glob, the one of SCAN, marked or not
``none``        none
==============  =====================================================================================================

``asked`` and any number of patterns go together: a SET that one of them takes is written down. So it is with the real
broker, whose operator names keys and may let clients ask (facts, 1.7).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import InvalidArgumentError, RequestSyntaxError
from statestore_client.server.store.glob import Glob, compile_glob

if TYPE_CHECKING:
    from statestore_client.wire.commands import Set

__all__ = ["KEEP_ALL", "Persistence"]

#: Bytes. To match a key takes time in proportion to its length; a longer one is written down without being matched.
_LONGEST_MATCHED: Final = 8192


@attrs.frozen
class Persistence:
    """See the module."""

    keeps_all: bool = False
    keeps_asked: bool = False
    patterns: tuple[Glob, ...] = ()

    @classmethod
    def of(cls, words: str | Iterable[str]) -> Persistence:
        """``all``, ``asked``, ``none``, a pattern, or several of them. Raises InvalidArgumentError."""
        if not isinstance(words, Iterable):
            raise InvalidArgumentError(f"persist is all, asked, none, or patterns of keys, not {words!r}")
        chosen = (words,) if isinstance(words, str) else tuple(words)
        alone = [word for word in chosen if word in ("all", "none")]
        if not chosen or (alone and len(set(chosen)) > 1):
            raise InvalidArgumentError(
                f"persist is all, asked, none, or patterns of keys, of which all and none stand alone; not {words!r}"
            )
        if alone:
            return cls(keeps_all=alone[0] == "all")
        patterns = tuple(_glob(word) for word in chosen if word != "asked")
        return cls(keeps_asked="asked" in chosen, patterns=patterns)

    def keeps(self, command: Set) -> bool:
        """Whether this SET is to be there after a restart."""
        if self.keeps_all or (self.keeps_asked and command.persist):
            return True
        key = command.key
        return bool(self.patterns) and (len(key) > _LONGEST_MATCHED or any(glob.matches(key) for glob in self.patterns))


KEEP_ALL: Final = Persistence(keeps_all=True)


def _glob(word: object) -> Glob:
    try:
        if isinstance(word, str):
            return compile_glob(word.encode())
    except (RequestSyntaxError, UnicodeEncodeError):
        pass
    raise InvalidArgumentError(
        f"{word!r} is not a pattern of keys: * ? [abc] stand for other characters, [*] for a star"
    )
