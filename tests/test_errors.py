"""The error tree: one root, what is a builtin error too, pickling, and one class for each text of the server."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest

import statestore_client
from statestore_client import errors
from statestore_client.errors import (
    BatchError,
    ConnectRefusedError,
    InvalidArgumentError,
    LockNotAcquiredError,
    PacketError,
    RequestTimeoutError,
    Resp3Error,
    ServerError,
    StateStoreError,
    TransportError,
    UnexpectedReplyError,
    UnknownServerError,
)
from statestore_client.wire.replies import Refused, decode_reply

CLASSES = sorted(
    (c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, StateStoreError)),
    key=lambda c: c.__name__,
)

TOO_OLD = "the request fencing token is a lower version {} the fencing token protecting the resource"

#: State store protocol, "-ERR responses"; "version than" is what the real service sends (state store facts, 1.2).
TEXTS = {
    "the request timestamp is too far in the future; "
    "ensure that the client and broker system clocks are synchronized": "RequestClockSkewError",
    "a fencing token is required for this request": "FencingTokenRequiredError",
    "the request fencing token timestamp is too far in the future; "
    "ensure that the client and broker system clocks are synchronized": "FencingTokenClockSkewError",
    TOO_OLD.format("than"): "FencingTokenTooOldError",
    TOO_OLD.format("that"): "FencingTokenTooOldError",
    "the quota has been exceeded": "QuotaExceededError",
    "syntax error": "RequestSyntaxError",
    "not authorized": "NotAuthorizedError",
    "unknown command": "UnknownCommandError",
    "wrong number of arguments": "WrongArgumentCountError",
    "missing timestamp": "MissingTimestampError",
    "malformed timestamp": "MalformedTimestampError",
    "the key length is zero": "EmptyKeyError",
    "something new": "UnknownServerError",
    "": "UnknownServerError",
}


def server_error(text: str) -> ServerError:
    """What a reply with this text is read as."""
    reply = decode_reply(f"-ERR {text}\r\n".encode())
    assert isinstance(reply, Refused)
    return reply.error


def _through_pickle(error: StateStoreError) -> Any:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


@pytest.mark.parametrize(("text", "name"), TEXTS.items())
def test_each_text_of_the_server_has_its_class(text: str, name: str) -> None:
    """Each error text of the server becomes an error of its own class, with the text kept word for word."""
    error = server_error(text)
    assert type(error).__name__ == name
    assert error.message == text
    assert isinstance(error, ServerError)
    assert not error.may_have_been_applied


def test_every_server_error_is_reachable() -> None:
    """Every class of server error belongs to a text of the server, but for the two base classes."""
    classes = {c.__name__ for c in CLASSES if issubclass(c, ServerError)} - {"ServerError", "FencingError"}
    assert classes == set(TEXTS.values())


def test_the_drawn_tree_is_the_real_one() -> None:
    """The tree that the module's docstring draws has every error class under its parent."""
    parents: list[str] = []
    drawn = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([│ ├└─]*)(\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            parents = [*parents[:depth], found[2]]
            drawn[found[2]] = parents[depth - 1] if depth else "Exception"
    assert drawn == {c.__name__: c.__bases__[0].__name__ for c in CLASSES}


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_public_and_documented(cls: type) -> None:
    """Every error is exported by its module and by the package, and has a docstring of its own."""
    assert cls.__name__ in errors.__all__
    assert getattr(statestore_client, cls.__name__) is cls
    assert cls.__name__ in statestore_client.__all__
    assert cls.__doc__ != cls.__bases__[0].__doc__


@pytest.mark.parametrize(
    "error",
    [
        *(cls("text") for cls in CLASSES),
        TransportError("lost", may_have_been_applied=True),
        ConnectRefusedError("full", reason_code=0x97),
        Resp3Error("bad", offset=7),
        PacketError("bad", reason_code=0x95, offset=3),
        BatchError("some", results=(1, InvalidArgumentError("x"), None)),
        UnknownServerError("new"),
        server_error("syntax error"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("copied", [_through_pickle, copy.copy])
def test_every_error_travels(error: StateStoreError, copied: Any) -> None:
    """An error keeps its text and everything it carries when it is pickled (a Spark worker sends it to the driver) or
    copied."""
    other = copied(error)
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert other.message == error.message
    assert other.may_have_been_applied == error.may_have_been_applied
    for name in ("reason_code", "offset"):
        assert getattr(other, name, None) == getattr(error, name, None)
    if isinstance(error, BatchError):
        assert [str(r) for r in other.results] == [str(r) for r in error.results]
        assert list(other.failures) == list(error.failures)


def test_some_errors_are_builtin_errors_too() -> None:
    """Some errors are builtin errors too, so that code which knows nothing of this package catches them."""
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(RequestTimeoutError, TimeoutError)
    assert issubclass(LockNotAcquiredError, TimeoutError)
    assert issubclass(errors.PickleRefusedError, TypeError)
    assert issubclass(errors.TimestampError, ValueError)


def test_who_may_have_applied_what() -> None:
    """An error says that nothing was applied unless it is told otherwise; after an unreadable reply it always says
    "maybe"."""
    assert not StateStoreError("x").may_have_been_applied
    assert UnexpectedReplyError("x").may_have_been_applied
    assert TransportError("x", may_have_been_applied=True).may_have_been_applied
