"""A linearizability checker for histories of one key: the algorithm of Wing and Gong, with Lowe's memory.

A history is linearizable when every operation can be given one moment between its call and its return so that, one
after the other in the order of these moments, they have the results that were seen. An operation whose outcome is
unknown (the answer was lost) may have its moment at any time after its call, or never.

Sources: J. Wing and C. Gong, "Testing and Verifying Concurrent Objects" (1993); G. Lowe, "Testing for Linearizability"
(2017). Keys are independent of each other, so each is checked alone (Herlihy and Wing 1990, theorem 1: locality).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

__all__ = ["REFUSED", "UNKNOWN", "History", "Operation", "explain", "is_linearizable"]

#: The result of an operation that nobody saw the end of.
UNKNOWN: Final = object()
#: The result of a write that the key's fencing token keeps out.
REFUSED: Final = "refused"
_IMPOSSIBLE: Final = object()

Value = bytes | None
State = tuple[Value, int | None]  # and the fencing token that a key is marked with


@attrs.frozen
class Operation:
    """``call`` and ``end`` are moments of one clock; ``end`` is infinite when the outcome is unknown."""

    kind: str  # set, nx, nex, cas, get, delete, vdelete
    value: Value
    result: object
    call: float
    end: float = math.inf
    expected: Value = None  # of cas
    token: int | None = None  # the fencing token of a write; a greater one is newer


def _unconditional(state: Value, operation: Operation) -> tuple[object, Value]:
    return True, operation.value


def _if_absent(state: Value, operation: Operation) -> tuple[object, Value]:
    return (True, operation.value) if state is None else (False, state)


def _if_absent_or_equal(state: Value, operation: Operation) -> tuple[object, Value]:
    return (True, operation.value) if state in (None, operation.value) else (False, state)


def _if_expected(state: Value, operation: Operation) -> tuple[object, Value]:
    return (True, operation.value) if state == operation.expected else (False, state)


def _read(state: Value, operation: Operation) -> tuple[object, Value]:
    return state, state


def _remove(state: Value, operation: Operation) -> tuple[object, Value]:
    return int(state is not None), None


def _remove_if_equal(state: Value, operation: Operation) -> tuple[object, Value]:
    return (1, None) if state == operation.value and state is not None else (0, state)


#: What each operation answers and leaves (state store protocol, "Commands"; KeyValueCodec of raft_client).
_RULES: Final[dict[str, Callable[[Value, Operation], tuple[object, Value]]]] = {
    "set": _unconditional,
    "nx": _if_absent,
    "nex": _if_absent_or_equal,
    "cas": _if_expected,
    "get": _read,
    "delete": _remove,
    "vdelete": _remove_if_equal,
}


def _step(state: State, operation: Operation) -> Any:
    """The state after the operation, or that it cannot have happened here. Tokens: state store protocol, "Fencing Token
    Algorithm"; the mark disappears with the key.
    """
    value, mark = state
    result: object
    if operation.kind != "get" and mark is not None and (operation.token is None or operation.token < mark):
        result, after = REFUSED, state
    else:
        result, value = _RULES[operation.kind](value, operation)
        after = (value, None if value is None else operation.token if result is True else mark)
    return after if operation.result is UNKNOWN or operation.result == result else _IMPOSSIBLE


def is_linearizable(history: Sequence[Operation], initial: Value = None) -> bool:
    """Whether one order explains all results."""
    operations = sorted(history, key=lambda operation: operation.call)
    certain = sum(1 << i for i, operation in enumerate(operations) if operation.result is not UNKNOWN)
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, (initial, None))]
    while stack:
        done, state = stack.pop()
        if done & certain == certain:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        first_end = min(o.end for i, o in enumerate(operations) if not done >> i & 1)
        for i, operation in enumerate(operations):
            if operation.call > first_end:
                break  # it began after another one was over that must come before it
            if not done >> i & 1 and (after := _step(state, operation)) is not _IMPOSSIBLE:
                stack.append((done | 1 << i, after))
    return False


def _named(operation: Operation) -> str:
    condition = f" if {operation.expected!r}" if operation.kind == "cas" else ""
    token = "" if operation.token is None else f" with token {operation.token}"
    return f"{operation.kind} {operation.value!r}{condition}{token}"


def explain(history: Sequence[Operation]) -> str:
    """The history, for people."""
    return "\n".join(
        f"{o.call:.6f} .. {o.end:.6f}  {_named(o)} -> {'?' if o.result is UNKNOWN else repr(o.result)}"
        for o in sorted(history, key=lambda operation: operation.call)
    )


class History:
    """What all clients did, by key."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, list[Operation]] = {}
        self.counts: Counter[str] = Counter()

    def add(self, key: bytes, operation: Operation) -> None:
        self.by_key.setdefault(key, []).append(operation)
        self.counts["unknown" if operation.result is UNKNOWN else operation.kind] += 1

    def check(self) -> None:
        """Raises AssertionError with the first key whose history is not linearizable."""
        for key, operations in self.by_key.items():
            assert is_linearizable(operations), f"{key!r}:\n{explain(operations)}"
