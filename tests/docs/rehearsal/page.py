"""The runbook as the rehearsal reads it: its parts by their headings, and the commands and the words of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["ALERTS", "RUNBOOK", "Page", "PageError"]

_OPERATIONS: Final = Path(__file__).parents[3] / "docs" / "operations"
RUNBOOK: Final = _OPERATIONS / "runbook.md"
ALERTS: Final = _OPERATIONS / "alerts.md"
_BLOCK: Final = re.compile(r"^ *```(bash|console|text)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
#: Of ``text`` blocks: what begins so is a command, the rest is what one says.
_PROGRAMS: Final = ("ask ", "mv ", "openssl ", "$ ")


class PageError(Exception):
    """The page does not say what the rehearsal does."""


class Page:
    """``words`` stand in it for what is different here, such as addresses."""

    def __init__(self, path: Path, words: dict[str, str] | None = None) -> None:
        self._name, self._words = path.name, words or {}
        self._table, *parts = re.split(r"^## (.+)$", path.read_text(), flags=re.MULTILINE)
        self._parts = dict(zip(parts[::2], parts[1::2], strict=True))

    def command(self, part: str, beginning: str, *, is_trouble: bool = False) -> str:
        """The commands of the block of this part which has a line that begins so, without the output under them.
        ``is_trouble``: of a block that makes trouble, or does what each does in a way of his own.

        Raises PageError if there is none.
        """
        found: list[list[str]] = []
        for block in _BLOCK.finditer(self._part(part)):
            indent = len(block[0]) - len(block[0].lstrip(" "))
            lines = [line[indent:] for line in block[2].splitlines()]
            if lines[0].startswith("# try:") != is_trouble:
                continue
            if block[1] != "bash":
                lines = [line.removeprefix("$ ") for line in lines if line.startswith(_PROGRAMS)]
            if any(line.startswith(beginning) for line in lines):
                found.append(lines)
        if found:
            lines = next((each for each in found if beginning in each), found[0])  # the whole line, if there is one
            return self._replaced("\n".join(lines))
        raise PageError(f"{self._name}: no block of {part!r} has the command {beginning!r}")

    def line(self, part: str, beginning: str) -> str:
        """One line of it."""
        lines = self.command(part, beginning).splitlines()
        return next(line for line in lines if line.startswith(self._replaced(beginning)))

    def line_of_trouble(self, part: str, beginning: str) -> str:
        """The same of a block that makes trouble, or does what each does in a way of his own."""
        lines = self.command(part, beginning, is_trouble=True).splitlines()
        return next(line for line in lines if line.startswith(beginning))

    def check(self, part: str, text: str) -> None:
        """Raises PageError if neither this part nor the table above all of them says this."""
        if text not in self._part(part) and text not in self._table:
            raise PageError(f"{self._name}: {part!r} does not say {text!r}")

    def _part(self, part: str) -> str:
        try:
            return self._parts[part]
        except KeyError:
            raise PageError(f"{self._name} has no part {part!r}") from None

    def _replaced(self, text: str) -> str:
        for word, value in self._words.items():
            text = text.replace(word, value)
        return text
