"""The two dialects a state store can speak."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Dialect"]


class Dialect(StrEnum):
    """``SERVICE`` answers as the real service does; ``DOCUMENT`` answers to the letter of the published document.

    They differ in a handful of words; each difference is handled where the word is written. Clients read both.
    """

    SERVICE = "service"
    DOCUMENT = "document"
