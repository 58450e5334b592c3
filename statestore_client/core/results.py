"""What the calls of both clients return, and how a reply becomes one of these or a typed error."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from statestore_client.errors import RequestSyntaxError, ServerError, UnexpectedReplyError, WrongArgumentCountError
from statestore_client.wire.commands import Command, Del, Get, KeyNotify, Scan, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import Count, Entries, ErrorReply, Found, Keys, NotApplied, NotFound, Ok, Reply


@attrs.frozen
class SetResult:
    """Outcome of a SET; true when it was applied.

    ``applied`` is False when the NX or NEX condition did not hold: nothing changed.
    """

    applied: bool
    #: Version of the value when applied. When not applied, what the server reports (it may be None).
    version: HlcTimestamp | None
    #: Which store has it: another one than before when the server lost its data and began anew. None where the server
    #: does not say, as the official service.
    store_id: str | None = attrs.field(default=None, eq=False, repr=False)

    def __bool__(self) -> bool:
        return self.applied


@attrs.frozen
class Item:
    """A value and its version (the HLC that the server gave it)."""

    value: bytes
    version: HlcTimestamp | None


@attrs.frozen
class DeleteResult:
    """Outcome of DEL and VDEL; true when the key is gone by this call: then ``count`` is 1, and 0 otherwise."""

    count: int
    version: HlcTimestamp | None
    #: False only for a VDEL that found another value.
    matched: bool = True

    def __bool__(self) -> bool:
        return self.count > 0


@attrs.frozen
class KeyPage:
    """One page of a SCAN. ``token`` asks for the next page; None on the last one."""

    keys: tuple[bytes, ...]
    token: bytes | None


Result: TypeAlias = SetResult | Item | DeleteResult | KeyPage | Entries | bool | None


def is_another_store(before: str | None, now: str | None) -> bool:
    """Whether the server began anew without its data between two answers, as far as they say."""
    return before is not None and now is not None and before != now


def interpret(command: Command, reply: Reply, version: HlcTimestamp | None, store_id: str | None = None) -> Result:
    """The result of ``command`` given its reply, and what came beside it.

    Raises the reply's :class:`ServerError`, or :class:`UnexpectedReplyError` when the reply fits another command.
    Different servers say *not applied* as ``:-1``, ``-1`` or ``$-1``; all are accepted (state store facts, 1.8).
    """
    if isinstance(reply, ErrorReply):
        raise named(reply.error, command)
    match command, reply:
        case Set(), Ok():
            return SetResult(True, version, store_id)
        case Set(), NotApplied() | NotFound() | Count(count=0):
            return SetResult(False, version, store_id)
        case Get(), Found(value=value):
            return Item(value, version)
        case Get(), NotFound():
            return None
        case ((Del() | VDel()), Count(count=count)):
            return DeleteResult(count, version)
        case VDel(), NotApplied() | NotFound():
            return DeleteResult(0, version, matched=False)
        case KeyNotify(), Ok() | Count():
            return isinstance(reply, Ok)
        case Scan(), Keys(keys=keys, token=token):
            return KeyPage(keys, token)
        case Scan(entries=True), Entries():
            return reply
    raise UnexpectedReplyError(f"{type(command).__name__.upper()} was answered with {reply!r}")


def named(error: ServerError, command: Command) -> ServerError:
    """The refusal of ``command``, which says what was refused.

    The server says *syntax error* only; in a SCAN that this client sends it can only mean the pattern, or that another
    store is to go on with a listing, and in a SET only the value of NEX.
    """
    if isinstance(error, RequestSyntaxError) and isinstance(command, Scan) and command.token is not None:
        error = RequestSyntaxError(
            f"{error.message}: the server cannot go on with this listing, which another store has begun, or this one "
            "before it lost its data; begin the listing again"
        )
    elif isinstance(error, RequestSyntaxError) and isinstance(command, Scan):
        error = RequestSyntaxError(
            f"{error.message}: the server cannot use the pattern; in a pattern, * ? [abc] stand for other characters"
        )
    elif isinstance(error, (RequestSyntaxError, WrongArgumentCountError)) and _compares(command):
        # With an expiry there is a word too many, without one that word is wrong: one mistake, one error.
        error = RequestSyntaxError(
            f"{RequestSyntaxError.wire_text}: the server does not know NEX with a value. The official service compares "
            "with the new value only; lock.edit() changes a key that others change, too"
        )
    error.command = type(command).__name__.upper()
    error.key = command.pattern if isinstance(command, Scan) else command.key
    return error


def _compares(command: Command) -> bool:
    return type(command) is Set and command.expected is not None


def within(timeout: float | None) -> str:
    """How long a caller waited in vain, in words, rounded: it may be what was left of a longer time. 0: one attempt."""
    return f"within {round(timeout, 2 if timeout >= 1 else 4):g} s" if timeout else "at once"
