"""Makes what strangers have written safe to show on a terminal.

Keys, values and names may hold control characters, and a terminal obeys them: they move the cursor, set a title, hide a
line or make one look like another. What has no shape of its own is shown as an escape; pipes and files get the bytes
as they are, so that programs read exactly what is stored.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["shown"]

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(data: bytes, *, lines: bool = False) -> bytes:
    """``data`` for standard output: with escapes, if that is a terminal. ``lines``: line feeds and tabs stay, as in the
    value of a key that somebody asked for; the end of a line always does.
    """
    if not sys.stdout.isatty():
        return data
    text, end = (data[:-1], "\n") if data.endswith(b"\n") else (data, "")
    kept = "\n\t" if lines else ""
    decoded = text.decode(errors="backslashreplace")
    return ("".join(c if c in kept or c.isprintable() else _escape(c) for c in decoded) + end).encode()


def _escape(character: str) -> str:
    """As JSON has it, so that a line of JSON stays one."""
    code = ord(character)
    return _SHORT.get(character) or (f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}")
