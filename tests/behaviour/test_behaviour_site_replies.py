"""Clients of a site, blocking and asyncio, whose site does not answer, or not as it should."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.sites import SHELLS, Impostor, Looped
from support.waiting import until

from statestore_client.errors import (
    ClosedError,
    InvalidArgumentError,
    NotMergedError,
    RemoteProtocolError,
    RequestTimeoutError,
    UnexpectedReplyError,
)
from statestore_client.kvstore import AsyncSiteClient, SiteClient, Value
from statestore_client.server.runtime.site_endpoints import SiteEndpoints
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import Failure, Found, Message, SetResult


@pytest.fixture(params=SHELLS, ids=lambda shell: shell.__name__)
def client_of(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients of one shell, and closes them."""
    made: list[Any] = []

    def make(url: str, **more: Any) -> Any:
        made.append(request.param(url, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()
        if isinstance(each, Looped):
            each.runner.close()


@pytest.fixture
def impostor() -> Iterator[Impostor]:
    """It."""
    one = Impostor()
    yield one
    one.close()


def test_a_site_that_does_not_answer(client_of: Callable[..., Any], impostor: Impostor) -> None:
    """A change may have been carried out, a read changes nothing. Replies to others, late ones, and what is no message
    of this protocol are passed over."""
    client = client_of(impostor.url, timeout_s=0.3)
    impostor.answer = lambda number: [b"", b"\x91\x02", encode(Found(number + 7, {})), b"\xc1"]
    with pytest.raises(RequestTimeoutError, match="has not answered") as caught:
        client.set("k", b"v")
    assert caught.value.may_have_been_applied
    with pytest.raises(RequestTimeoutError) as caught:
        client.get("k")
    assert not caught.value.may_have_been_applied
    impostor.answer = lambda number: [
        encode(Found(number - 1, {"k": Value(1, "x", b"old")})),
        encode(Found(number, {})),
    ]
    assert client.get("k") is None


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (lambda number: SetResult(number, {}), UnexpectedReplyError),
        (lambda number: Found(number, {}, 0), UnexpectedReplyError),
        (lambda number: Failure(number, 1, "what?"), RemoteProtocolError),
        (lambda number: Failure(number, 99, "what?"), RemoteProtocolError),
    ],
)
def test_replies_that_make_no_sense_are_errors(
    client_of: Callable[..., Any], impostor: Impostor, reply: Callable[[int], Message], error: type[Exception]
) -> None:
    """A reply of the wrong kind, or one that never comes to an end, is never taken for an answer."""
    impostor.answer = lambda number: [encode(reply(number))]
    for ask in ("dump", "get"):
        with pytest.raises(error):
            getattr(client_of(impostor.url), ask)(*(["k"] if ask == "get" else []))


def test_a_reason_of_a_newer_release_is_told_by_its_number(client_of: Callable[..., Any], impostor: Impostor) -> None:
    """The client does not stumble over it."""
    impostor.answer = lambda number: [encode(SetResult(number, {"k": 77}))]
    with pytest.raises(NotMergedError, match="77"):
        client_of(impostor.url).persist("k", b"v")


def test_closing_ends_a_call_in_another_thread(impostor: Impostor) -> None:
    """It does not wait for its time to be over."""
    client = SiteClient(impostor.url, timeout_s=60)
    errors: list[Exception] = []

    def call() -> None:
        try:
            client.get("k")
        except ClosedError as error:
            errors.append(error)

    asked = threading.Event()
    impostor.answer = lambda _number: asked.set() or []  # type: ignore[func-returns-value]  # it is called for that
    thread = threading.Thread(target=call)
    thread.start()
    assert asked.wait(20)
    client.close()
    thread.join(20)
    assert len(errors) == 1


async def test_tasks_share_a_client_and_one_may_give_up(impostor: Impostor) -> None:
    """A call that is cancelled leaves nothing behind, and closing ends the others."""
    asked: list[int] = []
    impostor.answer = lambda number: asked.append(number) or []  # type: ignore[func-returns-value]  # it is called for that
    client = AsyncSiteClient(impostor.url, timeout_s=60)
    calls = [asyncio.create_task(client.get(f"k{n}")) for n in range(3)]
    await until(lambda: len(asked) == 3)
    calls[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    impostor.answer = lambda number: [encode(Found(number, {}))]
    assert await client.get("other") is None
    await client.close()
    for call in calls[1:]:
        with pytest.raises(ClosedError, match="closed meanwhile"):
            await call


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 5},
        {"name": ""},
        {"name": "a\ud800"},
        {"listen": 5},
        {"peers": "tcp://127.0.0.1:1"},
        {"peers": (5,)},
        {"areas": "default"},
        {"areas": (5,)},
        {"areas": ()},
        {"areas": ("a", "a")},
        {"exports": "line/"},
        {"exports": (b"line/",)},
        {"exports": ("",)},
        {"exports": ("sites/",)},
        {"exports": ("sites/rome/line/",)},
        {"exports": ("a\ud800",)},
        {"imports": 1},
        {"imports": True, "name": "a/b"},
        {"exports": ("line/",), "name": "a/b"},
    ],
)
def test_a_site_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """With a typed error, whatever it is."""
    with pytest.raises(InvalidArgumentError):
        SiteEndpoints(**{"name": "a", "listen": "tcp://127.0.0.1:1"} | wrong)
