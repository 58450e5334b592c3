"""The list of hops of one set() in docs/explanation/how-it-works.md is what really runs, in both clients."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

import statestore_client
from statestore_client.server import EmbeddedServer

PACKAGE = Path(statestore_client.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "how-it-works.md"

_ROW = re.compile(r"^\| `([\w/]+\.py)` \| (both|blocking|asyncio) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
_FIGURES = re.compile(r"(\d+) modules and (\d+) functions in the (blocking|asyncio) client")

#: A busy machine cuts an answer in two, or lets a timer in; the plain way is still taken often enough.
_CALLS = 200

Hops = dict[str, list[str]]


def listed(client: str) -> Hops:
    """Module -> functions, as the page has them for this client."""
    found: Hops = {}
    for module, whose, functions in _ROW.findall(PAGE.read_text("utf-8")):
        if whose in ("both", client):
            found.setdefault(module, []).extend(re.findall(r"`(<?\w+>?)`", functions))
    return {module: sorted(functions) for module, functions in found.items()}


@cache
def module_of(file: str) -> str | None:
    """The module below the package, or None."""
    path = Path(file)
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None


@contextmanager
def noting(hops: Hops) -> Iterator[None]:
    """Note each function of the package that this thread enters."""

    def note(frame: FrameType, event: str, _argument: object) -> None:
        module = module_of(frame.f_code.co_filename) if event == "call" else None
        if module is not None:
            functions = hops.setdefault(module, [])
            if frame.f_code.co_name not in functions:
                functions.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def blocking(url: str) -> list[Hops]:
    """What each of many calls goes through."""
    taken: list[Hops] = []
    with statestore_client.StateStoreClient(url, driver="native") as client:
        for _ in range(_CALLS):
            taken.append({})
            with noting(taken[-1]):
                client.set(b"key", b"value")
    return taken


def asynchronous(url: str) -> list[Hops]:
    """The same, in an event loop."""

    async def call() -> list[Hops]:
        taken: list[Hops] = []
        async with statestore_client.AsyncStateStoreClient(url, driver="native") as client:
            for _ in range(_CALLS):
                taken.append({})
                with noting(taken[-1]):
                    await client.set(b"key", b"value")
        return taken

    return asyncio.run(call())


@pytest.mark.parametrize(("client", "calls"), [("blocking", blocking), ("asyncio", asynchronous)])
def test_the_hops_of_a_set_are_those_that_are_taken(client: str, calls: Callable[[str], list[Hops]]) -> None:
    """The functions that a set() in a loop goes through are those on the page, in the blocking client's order."""
    page = listed(client)
    with EmbeddedServer() as server:
        taken = calls(server.url)
    same = [hops for hops in taken if {module: sorted(names) for module, names in hops.items()} == page]
    if not same:
        assert {module: sorted(names) for module, names in taken[-1].items()} == page
    assert client == "asyncio" or any(list(hops) == list(page) for hops in same)


@pytest.mark.parametrize("client", ["blocking", "asyncio"])
def test_the_figures_of_a_set_are_those_of_the_list(client: str) -> None:
    """The numbers of modules and functions on the page are those of its list."""
    figures = {
        whose: (int(modules), int(functions)) for modules, functions, whose in _FIGURES.findall(PAGE.read_text("utf-8"))
    }
    page = listed(client)
    assert figures[client] == (len(page), sum(map(len, page.values())))
