"""The error tree: one root, what is a builtin error too, pickling, and one class for each text of the server."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import statestore_client
from statestore_client import errors
from statestore_client.errors import (
    BatchError,
    BusyError,
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
from statestore_client.wire.replies import ErrorReply, decode_reply

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
    assert isinstance(reply, ErrorReply)
    return reply.error


def refusal_of(command: str, key: bytes) -> ServerError:
    """A refusal that names what was refused."""
    error = ServerError("no")
    error.command, error.key = command, key
    return error


def _through_pickle(error: StateStoreError) -> Any:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


def test_each_text_of_the_server_has_its_class() -> None:
    """Each error text of the server becomes an error of its own class, with the text kept word for word, and every
    class of server error has such a text, but for the two base classes."""
    for text, name in TEXTS.items():
        error = server_error(text)
        assert type(error).__name__ == name
        assert error.message == text
        assert isinstance(error, ServerError)
        assert not error.may_have_been_applied
    classes = {c.__name__ for c in CLASSES if issubclass(c, ServerError)} - {"ServerError", "FencingError"}
    assert classes == set(TEXTS.values())


def test_every_error_is_public() -> None:
    """Every error is exported by its module and by the package."""
    for cls in CLASSES:
        assert cls.__name__ in errors.__all__
        assert getattr(statestore_client, cls.__name__) is cls
        assert cls.__name__ in statestore_client.__all__


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
        refusal_of("SET", b"key"),
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
    for name in ("reason_code", "offset", "command", "key"):
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
    assert not issubclass(BusyError, ValueError)  # misuse: code that catches errors of its parsing does not hide it
    assert UnexpectedReplyError("x").may_have_been_applied  # after an unreadable reply it is always "maybe"
