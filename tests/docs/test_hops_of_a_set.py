"""The list of hops of one set() in docs/explanation/how-it-works.md is what really runs, in both clients."""

from __future__ import annotations

import ast
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

#: Module -> functions.
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
    """Note each function of the package that this thread enters, with the classes that it is in."""

    def note(frame: FrameType, event: str, _argument: object) -> None:
        module = module_of(frame.f_code.co_filename) if event == "call" else None
        if module is not None:
            functions = hops.setdefault(module, [])
            if frame.f_code.co_qualname not in functions:
                functions.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def plain(hops: Hops) -> Hops:
    """The names as the page has them, sorted."""
    return {module: sorted({name.rpartition(".")[2] for name in names}) for module, names in hops.items()}


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
    same = [hops for hops in taken if plain(hops) == page]
    if not same:
        assert plain(taken[-1]) == page
    assert client == "asyncio" or any(list(hops) == list(page) for hops in same)


@pytest.mark.parametrize("client", ["blocking", "asyncio"])
def test_the_figures_of_a_set_are_those_of_the_list(client: str) -> None:
    """The numbers of modules and functions on the page are those of its list."""
    figures = {
        whose: (int(modules), int(functions)) for modules, functions, whose in _FIGURES.findall(PAGE.read_text("utf-8"))
    }
    page = listed(client)
    assert figures[client] == (len(page), sum(map(len, page.values())))


def functions_of(module: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Its functions and methods, with their qualified names."""
    todo: list[tuple[str, ast.AST]] = [("", ast.parse((PACKAGE / module).read_text("utf-8")))]
    for prefix, node in todo:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                todo.append((f"{prefix}{child.name}.", child))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child


def passes_on(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it does nothing but hand on what it was given, or ask one other object the same question."""
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    value = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        asked = [argument for argument in value.args if isinstance(argument, ast.Attribute)]
        is_question = value.func.id == "bool" and function.name != "__bool__"
        return is_question and all(isinstance(attribute.value, ast.Name) for attribute in asked)
    if isinstance(value, ast.Call):
        arguments = (*value.args, *(keyword.value for keyword in value.keywords))
        return is_reached(value.func) and all(map(is_reached, arguments))
    return isinstance(value, ast.Attribute) and is_reached(value)


def is_reached(node: ast.expr) -> bool:
    """Whether it is a name, or an attribute of what is one."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and is_reached(node.value))


@pytest.mark.parametrize("calls", [blocking, asynchronous])
def test_no_hop_of_a_set_only_passes_on(calls: Callable[[str], list[Hops]]) -> None:
    """Each function that calls of a loop go through adds something of its own."""
    with EmbeddedServer() as server:
        taken = calls(server.url)[_CALLS // 2 :]
    entered = {(module, name) for hops in taken for module, names in hops.items() for name in names}
    found = {(module, name): node for module in {m for m, _ in entered} for name, node in functions_of(module)}
    assert len(entered & found.keys()) > 80
    assert not [hop for hop in sorted(entered & found.keys()) if passes_on(found[hop])]
