"""The error tree: its shape, the texts of the wire, and that every error survives a pickle."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import traceback
from typing import Any

import pytest

import statestore_client
from statestore_client import errors
from statestore_client.errors import (
    BatchError,
    ClockDriftError,
    ConnectionLostError,
    ConnectRefusedError,
    EmptyKeyError,
    FencingTokenClockSkewError,
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    LeaseLostError,
    LockNotAcquiredError,
    MalformedTimestampError,
    MissingTimestampError,
    NotAuthorizedError,
    PacketError,
    PickleRefusedError,
    QuotaExceededError,
    RequestClockSkewError,
    RequestSyntaxError,
    RequestTimeoutError,
    Resp3Error,
    ServerError,
    SettingsError,
    StateStoreError,
    TransportError,
    UnexpectedReplyError,
    UnknownCommandError,
    UnknownServerError,
    WrongArgumentCountError,
    server_error,
)

CLASSES = sorted(
    (c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, StateStoreError)),
    key=lambda c: c.__name__,
)
_SYNCHRONIZE = "ensure that the client and broker system clocks are synchronized"

#: State store protocol, "-ERR responses"; "than" where the published text has "that" is from state store facts, 1.4.
WIRE_TEXTS = {
    f"the request timestamp is too far in the future; {_SYNCHRONIZE}": RequestClockSkewError,
    "a fencing token is required for this request": FencingTokenRequiredError,
    f"the request fencing token timestamp is too far in the future; {_SYNCHRONIZE}": FencingTokenClockSkewError,
    "the request fencing token is a lower version that the fencing token protecting the resource": FencingTokenTooOldError,
    "the request fencing token is a lower version than the fencing token protecting the resource": FencingTokenTooOldError,
    "the quota has been exceeded": QuotaExceededError,
    "syntax error": RequestSyntaxError,
    "not authorized": NotAuthorizedError,
    "unknown command": UnknownCommandError,
    "wrong number of arguments": WrongArgumentCountError,
    "missing timestamp": MissingTimestampError,
    "malformed timestamp": MalformedTimestampError,
    "the key length is zero": EmptyKeyError,
}

# -- the tree ----------------------------------------------------------------------------------------------------------


def drawn_tree() -> dict[str, tuple[str, str | None]]:
    """Name -> (parent, the class of Python that it is as well), read from the drawing in the module's docstring."""
    drawn: dict[str, tuple[str, str | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(r" {4}([│├└─ ]*)(\w+Error)(?: \((\w+)\))?(?: {2,}.*)?", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        path[depth:] = [match[2]]
        if depth:
            drawn[match[2]] = (path[depth - 1], match[3])
    return drawn


def test_the_drawing_of_the_tree_is_the_tree() -> None:
    """Every class stands under its base, with the class of Python that it also is."""
    drawn = drawn_tree()
    assert set(drawn) == {c.__name__ for c in CLASSES} - {"StateStoreError"}
    for name, (parent, builtin) in drawn.items():
        assert getattr(errors, name).__bases__[0].__name__ == parent, name
        if builtin is not None:
            assert builtin in [c.__name__ for c in getattr(errors, name).__mro__]


def test_errors_are_also_what_python_calls_them() -> None:
    """Code that knows nothing of this package catches time-outs and wrong values."""
    assert issubclass(RequestTimeoutError, TimeoutError)
    assert issubclass(LockNotAcquiredError, TimeoutError)
    assert issubclass(SettingsError, ValueError)
    assert issubclass(ClockDriftError, ValueError)
    assert issubclass(PickleRefusedError, TypeError)
    assert not issubclass(ServerError, (TimeoutError, ValueError, OSError))


def test_every_error_is_public_and_explained() -> None:
    """Exported from the package and with a docstring; ``server_error`` stays inside."""
    for cls in CLASSES:
        assert getattr(statestore_client, cls.__name__) is cls
        assert cls.__name__ in statestore_client.__all__
        assert "__doc__" in vars(cls), f"{cls.__name__} has no docstring of its own"
        assert cls.__doc__
    assert set(errors.__all__) == {c.__name__ for c in CLASSES} | {"server_error"}
    assert "server_error" not in statestore_client.__all__


# -- the wire ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "kind"), WIRE_TEXTS.items())
def test_every_text_of_the_wire_has_its_class(text: str, kind: type[ServerError]) -> None:
    """The twelve texts of the document, one of them in its two spellings; the text that came is kept."""
    error = server_error(text)
    assert type(error) is kind
    assert str(error) == error.message == text
    assert not error.may_have_been_applied


def test_every_server_error_stands_for_a_text() -> None:
    """But for the bases and the one for texts that nobody knows yet."""
    kinds = {c for c in CLASSES if issubclass(c, ServerError)}
    assert kinds - set(WIRE_TEXTS.values()) == {ServerError, errors.FencingError, UnknownServerError}
    for kind in set(WIRE_TEXTS.values()):
        assert str(kind()) == kind.wire_text in WIRE_TEXTS


@pytest.mark.parametrize(
    "text", ["", "the moon is full", "Not authorized", "syntax error ", "syntax error: x", "\N{SNOWMAN}"]
)
def test_a_text_that_is_not_known_is_kept(text: str) -> None:
    """Newer servers have other texts (state store protocol, "-ERR responses"); nothing is guessed from a part."""
    error = server_error(text)
    assert type(error) is UnknownServerError
    assert error.message == text


# -- attributes --------------------------------------------------------------------------------------------------------


def test_transport_errors_say_if_the_command_may_have_been_applied() -> None:
    """Each one for itself, and "no" unless it is told; a reply that fits nothing never says "no"."""
    for kind in (TransportError, ConnectionLostError, RequestTimeoutError):
        assert not kind("x").may_have_been_applied
        assert kind("x", may_have_been_applied=True).may_have_been_applied
    assert UnexpectedReplyError("x").may_have_been_applied
    assert not LeaseLostError("x").may_have_been_applied


def test_protocol_errors_say_where() -> None:
    """The byte offset, and MQTT's reason code."""
    assert (Resp3Error("bad", offset=7).offset, str(Resp3Error("bad", offset=7))) == (7, "bad (at byte 7)")
    assert (PacketError("bad").reason_code, PacketError("bad", offset=3).offset) == (0x81, 3)
    assert ConnectRefusedError("no", reason_code=0x87).reason_code == 0x87


def test_a_batch_error_tells_which_items_failed() -> None:
    """By position; the results of the others are there, too."""
    failure = QuotaExceededError()
    error = BatchError("1 of 3 items failed", results=(1, failure, None))
    assert error.failures == {1: failure}
    assert error.results == (1, failure, None)


# -- pickles -----------------------------------------------------------------------------------------------------------

_SAMPLES: list[StateStoreError] = [
    *(cls() for cls in CLASSES),
    *(cls("what happened") for cls in CLASSES),
    *(cls("gone", may_have_been_applied=True) for cls in (TransportError, ConnectionLostError, RequestTimeoutError)),
    ConnectRefusedError("banned", reason_code=0x8A),
    Resp3Error("bad length", offset=12),
    PacketError("bad flags", reason_code=0x82, offset=3),
    PacketError("bad flags", reason_code=0x95),
    BatchError("one failed", results=(None, Resp3Error("bad", offset=1), RequestTimeoutError("late"))),
]


def described(error: BaseException) -> Any:
    """Everything that users can ask an error, in a form that compares."""
    attributes = {
        name: tuple(described(r) if isinstance(r, BaseException) else r for r in value)
        if isinstance(value, tuple)
        else value
        for name, value in vars(error).items()
        if name != "__notes__"
    }
    applied = getattr(error, "may_have_been_applied", None)
    return type(error), str(error), getattr(error, "message", None), applied, attributes


@pytest.mark.parametrize("error", _SAMPLES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_pickles_with_its_attributes(error: StateStoreError, protocol: int) -> None:
    """Spark carries errors from its workers to the driver, some of them twice."""
    once = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own bytes
    twice = pickle.loads(pickle.dumps(once, protocol))  # noqa: S301 - our own bytes
    assert described(once) == described(twice) == described(error)


@pytest.mark.parametrize("error", _SAMPLES, ids=lambda e: type(e).__name__)
def test_every_error_copies_without_its_traceback(error: StateStoreError) -> None:
    """Each caller of a broken client raises a copy of one error; its traceback is his own."""
    with pytest.raises(StateStoreError) as caught:
        raise error
    duplicate = copy.copy(caught.value)
    assert described(duplicate) == described(error)
    assert duplicate is not error
    assert traceback.extract_tb(duplicate.__traceback__) == []


def test_classes_outside_the_package_pickle_as_well() -> None:
    """An error class that somebody derives keeps its attributes."""
    error = _Derived("mine", may_have_been_applied=True)
    error.colour = "red"
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), again.colour, again.may_have_been_applied, str(again)) == (_Derived, "red", True, "mine")


class _Derived(TransportError):
    colour = "blue"
