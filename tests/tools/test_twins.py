"""The generator of the blocking twins: text in, text out, and each way in which a source can be refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import twins
from twins import Tables, TwinError, tidy, translate

ROOT = Path(twins.__file__).resolve().parent.parent


def tables(**more: str) -> Tables:
    """The tables of these tests: names as keywords, and two phrases."""
    names = {name: twins.NAMES[name] for name in twins.NAMES if name.startswith("_") or name.endswith("ation")}
    names |= {"aio": "sync", "AsyncIterator": "Iterator", "AsyncWatch": "Watch", **more}
    return Tables(names, {"another task": "another thread", "In the asyncio client": "In the asyncio client"})


def translated(source: str) -> str:
    return translate(dedent(source), "room/aio/it.py", tables())


def refusal(source: str) -> str:
    with pytest.raises(TwinError) as caught:
        translated(source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async def f(): return await g()\n", "def f(): return g()\n"),
        ("async with a as b, c: pass\n", "with a as b, c: pass\n"),
        ("async for x in y: pass\n", "for x in y: pass\n"),
        ("z = [x async for x in y]\n", "z = [x for x in y]\n"),
        ("x = await  f()\n", "x = f()\n"),
        ("x = await (await f()).g(await h())\n", "x = (f()).g(h())\n"),
        ("async def __aenter__(self): pass\n", "def __enter__(self): pass\n"),
        ("from room.aio.watch import AsyncWatch\n", "from room.sync.watch import Watch\n"),
        ("async def __anext__(s): raise StopAsyncIteration\n", "def __next__(s): raise StopIteration\n"),
        ("f: Callable[[], Awaitable[dict[int, list[str]]]]\n", "f: Callable[[], dict[int, list[str]]]\n"),
        ("f: Awaitable[Awaitable[None]] | Awaitable[X]\n", "f: None | X\n"),
        ("xs[Awaitable[int]][ys[0]]\n", "xs[int][ys[0]]\n"),
        ("ä = 'é' if await g() else 'ö'\n", "ä = 'é' if g() else 'ö'\n"),
        ("x.awaiting = 1\n", "x.awaiting = 1\n"),
    ],
)
def test_what_waits_becomes_what_blocks(source: str, expected: str) -> None:
    """The generator drops async and await, changes names by its table, and leaves everything else as it is."""
    assert translated(source) == expected


def test_texts_change_by_phrases_and_names() -> None:
    """Docstrings, comments, messages and f-strings change by the table of phrases; text that is true of both shells
    stays."""
    source = '''
        async def f(self):
            """Ends :class:`AsyncWatch` in another task.

            In the asyncio client it may be called twice.
            """
            g(f"{self.name!r} is in another task")  # as another task says, by __anext__
    '''
    expected = '''
        def f(self):
            """Ends :class:`Watch` in another thread.

            In the asyncio client it may be called twice.
            """
            g(f"{self.name!r} is in another thread")  # as another thread says, by __next__
    '''
    assert translated(source) == dedent(expected)


def test_a_statement_of_asyncio_alone_goes() -> None:
    """A statement that belongs to asyncio alone is dropped with all of its lines, and the comment above it stays."""
    source = """
        async def f():
            # first
            await give_way(
                1,
            )  # asyncio only: there is no loop to give way to
            await g()
    """
    expected = """
        def f():
            # first
            g()
    """
    assert translated(source) == dedent(expected)
    assert translated("x()  # asyncio only: no\ny()\n") == "y()\n"


@pytest.mark.parametrize(
    ("source", "line", "word"),
    [
        ("import asyncio\n", 1, "asyncio"),
        ("x = 1\nawait asyncio.sleep(0)\n", 2, "asyncio"),
        ("from room.aio.lock import AsyncLock\n", 1, "AsyncLock"),
        ("x = inspect.isawaitable(y)\n", 1, "isawaitable"),
        ("def f(x: Coroutine[None, None, int]): pass\n", 1, "Coroutine"),
        ("x: Awaitable\n", 1, "Awaitable"),
        ("x = y(may_await=True)\n", 1, "may_await"),
        ("await anext(x)\n", 1, "anext"),
        ("connector = aio_connector()\n", 1, "aio_connector"),
        ('def f():\n    """One.\n\n    Called by a task.\n    """\n', 4, "task"),
        ("x = 1\n\n# the event loop runs it\n", 3, "event loop"),
        ("raise E('await open()')\n", 1, "await"),
        ("x = f'{await g()}'\n", 1, "await"),
        ('"""Two.\nIn another\ntask.\n"""\n', 3, "task"),
        ("x = 1  # asyncio only\n", 1, "asyncio"),
    ],
)
def test_what_is_left_over_stops_the_run(source: str, line: int, word: str) -> None:
    """A name or word of asyncio that no table knows stops the run, with file, line, word and what to do."""
    said = refusal(source)
    assert said.startswith(f"room/aio/it.py:{line}: {word!r} ")
    assert "tools/twins.py" in said


def test_a_generator_does_not_raise_its_own_end() -> None:
    """StopIteration raised inside a generator is refused, but not in a function that the generator defines."""
    said = refusal("async def f():\n    yield 1\n    raise StopAsyncIteration\n")
    assert said.startswith("room/aio/it.py:3: ")
    assert "return" in said
    inner = "async def f():\n    async def g():\n        raise StopAsyncIteration{}\n    yield g\n"
    assert "raise StopIteration()" in translated(inner.format("()"))
    assert "raise StopIteration from e" in translated(inner.format(" from e"))


def test_a_source_that_is_not_python_is_refused() -> None:
    """A source that is not Python, as in the middle of a merge, is refused with its place and without a traceback."""
    assert refusal("x = 1\n<<<<<<< ours\n").startswith("room/aio/it.py:2: this is not Python: ")


def test_ruff_tidies_what_is_left() -> None:
    """Ruff sorts, merges and drops imports, replaces loops that only yield by ``yield from``, and joins lines."""
    text = dedent("""
        from collections.abc import Iterator, Awaitable, Iterator
        from room.sync.a import b
        from room.core import c

        def f(xs: Iterator[int]) -> Iterator[int]:
            for x in xs:
                yield x
            b(
                c
            )
    """)
    assert (
        tidy(text, "raft_client/sync/it.py")
        == dedent("""
        from collections.abc import Iterator

        from room.core import c
        from room.sync.a import b


        def f(xs: Iterator[int]) -> Iterator[int]:
            yield from xs
            b(c)
    """).lstrip()
    )


@pytest.mark.parametrize("text", ["x = undefined\n", f"x = 1  # {'y' * 120}\n", "def f(:\n"])
@pytest.mark.ci
def test_what_ruff_refuses_is_refused(text: str) -> None:
    """What ruff refuses is refused with the file's name and ruff's message, and no half-formatted twin is written."""
    with pytest.raises(TwinError, match=r"^raft_client/sync/it\.py: the twin does not pass ruff .*mend its source"):
        tidy(text, "raft_client/sync/it.py")


def test_entries_of_the_tables_that_nobody_needs_are_told() -> None:
    """An entry of the tables that no source needs is reported, so that the tables stay narrow."""
    found = tables(AsyncOther="Other")
    translate("from x.aio.y import AsyncWatch  # in another task\n", "it.py", found)
    assert {"AsyncOther", "__aexit__", "In the asyncio client"} <= set(found.unused)
    assert not {"aio", "AsyncWatch", "another task"} & set(found.unused)


# -- the tool in a copy of the repository ------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The part of the repository that the tool looks at."""
    for package in twins.TWINS:
        for shell in ("aio", "sync"):
            shutil.copytree(ROOT / package / shell, tmp_path / package / shell)
        shutil.copy(ROOT / package / "__init__.py", tmp_path / package)
    for paths in twins.COPIES.items():
        for path in paths:
            shutil.copy(ROOT / path, tmp_path / path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(checkout: Path, *arguments: str) -> tuple[int, str]:
    """The exit status, and what it says."""
    done = subprocess.run(
        [sys.executable, "tools/twins.py", *arguments], cwd=checkout, capture_output=True, encoding="utf-8", check=False
    )
    assert not done.stdout
    return done.returncode, done.stderr


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


@pytest.mark.ci
def test_the_committed_twins_are_fresh() -> None:
    """Each committed blocking twin is what its asyncio source gives. If this fails: make twins."""
    status, said = run(ROOT, "--check")
    assert (status, said) == (0, "")


@pytest.mark.ci
def test_a_stale_twin_is_noticed_and_written_anew(checkout: Path) -> None:
    """The check reports a twin that differs from its source, whichever of the two was changed, and writes nothing."""
    source, twin = (checkout / "raft_client" / shell / "readers.py" for shell in ("aio", "sync"))
    change(source, "a stream of log entries", "the log's entries")
    change(checkout / "raft_client/sync/watch.py", "import logging", "import logging as logging")
    status, said = run(checkout, "--check")
    assert status == 1
    assert said.splitlines() == [f'raft_client/sync/{m}.py is stale: run "make twins"' for m in ("readers", "watch")]
    assert "the log's entries" not in twin.read_text("utf-8")
    assert run(checkout) == (0, "")
    assert "the log's entries" in twin.read_text("utf-8")
    assert run(checkout, "--check") == (0, "")


@pytest.mark.ci
def test_a_source_that_cannot_be_translated_changes_no_twin(checkout: Path) -> None:
    """If one source cannot be translated, no twin is written, not even those of other sources."""
    change(checkout / "raft_client/aio/client.py", '"""The asyncio client."""', '"""The client."""')
    change(checkout / "raft_client/aio/watch.py", "import logging", "import asyncio\nimport logging")
    before = {path: path.read_bytes() for path in checkout.rglob("*.py")}
    status, said = run(checkout)
    assert status == 1
    assert said.startswith("raft_client/aio/watch.py:5: 'asyncio' has no counterpart in threads")
    assert {path: path.read_bytes() for path in checkout.rglob("*.py")} == before


@pytest.mark.ci
def test_the_mark_and_the_table_agree(checkout: Path) -> None:
    """Each file marked as generated has a source in the table, and each entry of the table has a file."""
    mark = (checkout / "raft_client/sync/client.py").read_text("utf-8").partition("\n")[0]
    assert mark == '# Generated from raft_client/aio/client.py by tools/twins.py. Edit that, and run "make twins".'
    change(checkout / "raft_client/sync/primitives.py", '"""What', mark + '\n"""What')
    change(checkout / "tools/twins.py", '    "AsyncWatch": "Watch",', '    "AsyncWatch": "Watch",\n    "AsyncX": "X",')
    status, said = run(checkout, "--check")
    assert status == 1
    assert said.splitlines() == [
        "raft_client/sync/primitives.py is marked as generated, and TWINS in tools/twins.py does not name it",
        "no source needs 'AsyncX' in the tables of tools/twins.py; take it out",
    ]


def test_other_arguments_are_explained(checkout: Path) -> None:
    """The tool answers arguments that it does not know with what it is for."""
    status, said = run(checkout, "--help")
    assert status == 1
    assert said == (twins.__doc__ or "") + "\n"
