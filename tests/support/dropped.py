"""What is dropped without being closed: the collector finds it, and says so."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.waiting import eventually

__all__ = ["unclosed"]


@contextmanager
def unclosed(*what: str) -> Iterator[Callable[[], int]]:
    """Inside, or a moment later, these are dropped and found by the collector, and nothing else is.

    Gives what counts those that were found by now.
    """
    texts: list[str] = []

    def note(message: Warning | str, category: type[Warning], *_: object) -> None:
        if category is ResourceWarning:
            texts.append(str(message))  # a record of the warning would keep its source

    def count() -> int:
        gc.collect()
        return len(texts)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield count
        eventually(lambda: count() >= len(what), str(what))
    assert len(texts) == len(what), texts
    for text, beginning in zip(texts, what, strict=True):
        assert text.startswith(f"unclosed {beginning}"), texts
