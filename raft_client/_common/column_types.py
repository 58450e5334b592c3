"""Say how to convert a column of Spark whose type is not taken: the end of errors of both Spark rooms. Pure."""

from __future__ import annotations

from typing import Final

#: Ask for ``to_json`` of these types of Spark: a cast makes a text of them that no other program reads.
_NESTED: Final = ("struct", "array", "map", "variant")
#: Types that say when, for a column that takes a time or a number.
_TIMES: Final = ("string", "varchar", "char", "date", "timestamp")


def conversion(column: str, kind: str, to: str) -> str:
    """How a column becomes one that is taken, as the rest of a sentence; empty where no expression of Spark does that.

    ``kind`` is the ``simpleString()`` of the type that it has, ``to`` the type to have: ``string``, ``bigint``,
    ``double``, or ``timestamp`` for a column that takes a whole number as well.
    """
    name = column if column.isidentifier() else f"`{column.replace('`', '``')}`"
    nested = kind.startswith(_NESTED)
    if nested and to != "string":
        return ""
    if to == "timestamp" and not kind.startswith(_TIMES):
        to = "bigint"
    expression = f"to_json({name})" if nested else f"cast({name} as {to})"
    return f": select {expression} as {name}"
