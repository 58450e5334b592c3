"""What users give to a client to go by: the functions and classes that are accepted, and what an answer may not be."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from statestore_client.errors import InvalidArgumentError, StateStoreError

__all__ = ["check_error_classes", "check_function", "refuse_awaitable"]


def check_error_classes(what: str, classes: object) -> tuple[type[StateStoreError], ...]:
    """One class of errors, or a tuple of them, as ``except`` takes them. Raises :class:`InvalidArgumentError`."""
    found = classes if isinstance(classes, tuple) else (classes,)
    for each in found:
        if not isinstance(each, type) or not issubclass(each, StateStoreError):
            raise InvalidArgumentError(
                f"{what} must be a class of errors of this package, or a tuple of such classes, not {each!r}"
            )
    return found


def check_function(what: str, function: object, *, awaited: bool = False) -> None:
    """Raise :class:`InvalidArgumentError` for what cannot be called, and for coroutine functions unless ``awaited``."""
    if not callable(function):
        raise InvalidArgumentError(f"{what} must be a function, not {type(function).__name__}")
    if _makes(inspect.isasyncgenfunction, function):
        raise InvalidArgumentError(f"{what} is an asynchronous generator function; calling it would do nothing")
    if not awaited and _makes(inspect.iscoroutinefunction, function):
        raise InvalidArgumentError(
            f"{what} is a coroutine function, and nobody would await it here: pass a plain function"
        )


def refuse_awaitable(what: str, outcome: object) -> None:
    """Raise :class:`InvalidArgumentError` for an answer that should have been awaited: of a lambda, say."""
    if inspect.isawaitable(outcome):
        if inspect.iscoroutine(outcome):
            outcome.close()  # or Python warns that it was never awaited
        raise InvalidArgumentError(f"{what} returned {type(outcome).__name__!r}, which nobody awaits here")


def _makes(is_such: Callable[[object], bool], function: object) -> bool:
    """Whether a function is of a kind, under its partials, or as the ``__call__`` of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return bool(is_such(function) or is_such(getattr(type(function), "__call__", None)))  # noqa: B004 - not whether it has one
