"""Bytes and names that strangers have sent, as text that shows what it is."""

from __future__ import annotations

from typing import Final

__all__ = ["shown"]

#: Characters. Keys may have 64 KiB, and a line of a page has room for less.
_LONGEST: Final = 160


def shown(data: bytes | str, longest: int = _LONGEST) -> str:
    r"""At most ``longest`` characters and an ellipsis. What is not UTF-8, and what has no shape of its own (line
    breaks, controls, changes of direction), is written as ``\x07`` or ``\u202e``, so that it can
    neither hide nor disguise.
    """
    text = data if isinstance(data, str) else data[: 4 * longest + 4].decode(errors="backslashreplace")
    if len(text) > longest:
        text = text[:longest] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
