"""Frames as the tests of messages write them."""

from __future__ import annotations

__all__ = ["frames"]


def frames(text: str) -> list[bytes]:
    """``"01 | 5e |  | a133"`` as frames; nothing between two bars is an empty frame."""
    return [bytes.fromhex(part) for part in text.split("|")]
