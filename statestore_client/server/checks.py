"""Values that a program gives the server: one that cannot work is refused where it is given, with what would work.

The functions raise :class:`InvalidArgumentError`; the validators are the same for fields of attrs classes. A ``bool``
is not a number here, although Python takes it for one: a program that says ``port=True`` meant something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from statestore_client.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    import attrs

#: Ten thousand years. Not-a-number and infinity, once in a clock, would stop everything that waits.
LONGEST_S: Final = 10_000 * 365.25 * 86_400

Validator: TypeAlias = "Callable[[Any, attrs.Attribute[Any], Any], None]"


def check_number(name: str, value: object, low: int, high: int | None = None) -> None:
    """A whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        wanted = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidArgumentError(f"{name} must be a whole number {wanted}, not {value!r}", argument=name)


def check_seconds(name: str, value: object, low: float = 0.0, high: float = LONGEST_S) -> None:
    """A time that there is: no not-a-number, and no infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        wanted = (
            f" of at least {low:g}, within ten thousand years" if high == LONGEST_S else f" from {low:g} to {high:.10g}"
        )
        wanted = " within ten thousand years" if low == -LONGEST_S else wanted
        raise InvalidArgumentError(f"{name} must be a number of seconds{wanted}, not {value!r}", argument=name)


def check_flag(name: str, value: object) -> None:
    """Neither 0 nor a text: ``"no"`` is true."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be True or False, not {value!r}", argument=name)


def check_text(name: str, value: object) -> None:
    """Any text, also an empty one."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be a text, not {value!r}", argument=name)


def check_choice(name: str, value: object, *values: str) -> None:
    """One of a few words."""
    if value not in values:
        raise InvalidArgumentError(
            f"{name} must be one of {', '.join(map(repr, values))}, not {value!r}", argument=name
        )


def check_kind(name: str, value: object, *kinds: type, wanted: str = "") -> None:
    """None, or one of these. A dictionary in place of an object would fail far away from here, or be ignored."""
    if value is not None and not isinstance(value, kinds):
        wanted = wanted or " or ".join(kind.__name__ for kind in kinds)
        raise InvalidArgumentError(f"{name} must be {wanted}, not {type(value).__name__}", argument=name)


def check_tuple(name: str, value: object) -> None:
    """A text alone would be taken for its letters."""
    if not isinstance(value, tuple):
        raise InvalidArgumentError(f"{name} must be a tuple, not {type(value).__name__}", argument=name)


def check_function(name: str, value: object) -> None:
    """None, or something to call."""
    if value is not None and not callable(value):
        raise InvalidArgumentError(f"{name} must be a function, not {type(value).__name__}", argument=name)


def check_path(name: str, value: object) -> None:
    """None, or a text or an object like those of pathlib. An empty one, mostly a variable that is not set, would be the
    current directory.
    """
    as_text = getattr(type(value), "__fspath__", None)  # as os.fspath does; this room knows no os
    path = value if as_text is None else as_text(value)
    check_kind(name, path, str, wanted="a path")
    if path == "":
        raise InvalidArgumentError(f"{name} is empty", argument=name)
    if isinstance(path, str) and "\0" in path:
        raise InvalidArgumentError(f"{name} must be a path, not {path!r}", argument=name)


class NumberCheck:
    """See :func:`number`. The option that sets the field takes no more than ``high`` either."""

    __slots__ = ("_low", "high")

    def __init__(self, low: int, high: int | None) -> None:
        self._low = low
        self.high: int | None = high

    def __call__(self, _instance: object, field: attrs.Attribute[Any], value: object) -> None:
        check_number(field.name, value, self._low, self.high)


def number(low: int, high: int | None = None) -> NumberCheck:
    """See :func:`check_number`."""
    return NumberCheck(low, high)


def seconds(low: float = 0.0, high: float = LONGEST_S) -> Validator:
    """See :func:`check_seconds`."""
    return lambda _instance, field, value: check_seconds(field.name, value, low, high)


def choice(*values: str) -> Validator:
    """See :func:`check_choice`."""
    return lambda _instance, field, value: check_choice(field.name, value, *values)


def kind(*kinds: type) -> Validator:
    """See :func:`check_kind`."""
    return lambda _instance, field, value: check_kind(field.name, value, *kinds)


def required(check: Validator) -> Validator:
    """The same without None."""

    def check_given(instance: object, field: attrs.Attribute[Any], value: object) -> None:
        if value is None:
            raise InvalidArgumentError(f"{field.name} must be given, not None", argument=field.name)
        check(instance, field, value)

    return check_given


def flag(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    """See :func:`check_flag`."""
    check_flag(field.name, value)


def function(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    """See :func:`check_function`."""
    check_function(field.name, value)


def path(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    """See :func:`check_path`."""
    check_path(field.name, value)


def text(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    """See :func:`check_text`."""
    check_text(field.name, value)
