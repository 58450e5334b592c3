"""Writes the blocking twins: a module that differs from its asyncio source by nothing but waiting is generated from it.

    python tools/twins.py            write the twins anew
    python tools/twins.py --check    write nothing; fail when one of them is stale

The source is read token by token:

* ``async`` and ``await`` go, and ``Awaitable[X]`` becomes ``X``.
* Names are replaced by the table ``NAMES``, in code and in texts. Any other name that speaks of asyncio stops the run.
* A statement with the comment ``# asyncio only: reason`` has no counterpart in threads, and goes.
* Docstrings, comments and messages change by the table ``PHRASES``, and by nothing else. A phrase stands on one line,
  and is long enough to mean one thing. One that becomes itself is true of both shells. Any other word on tasks,
  coroutines or event loops stops the run, and so does an entry of a table that no source needs any more.
* ruff then sorts the imports, drops those that are not used any more, and formats.

A module of :data:`COPIES` is the same in both packages but for their names.

What really differs between tasks and threads (cancellation, locks, workers, sleeping until a deadline) belongs to small
primitives that both shells have under one name, written by hand.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["NAMES", "PHRASES", "TWINS", "Tables", "TwinError", "main", "tidy", "translate"]

ROOT: Final = Path(__file__).resolve().parent.parent

#: Package -> the modules of its ``aio`` folder that have a generated twin in ``sync``.
TWINS: Final = {
    "raft_client": ("client", "key_values", "lease", "mirror", "readers", "watch"),
    "statestore_client": ("client", "leases", "locks", "steps", "watch"),
    "statestore_client/kvstore": ("client",),
    "statestore_client/recipes": ("barrier", "counter", "members", "partitioner", "semaphore"),
}

#: Modules that both packages have, since neither client imports the other's package: source -> its copy.
COPIES: Final = {
    "statestore_client/sync/section.py": "raft_client/sync/section.py",
    "statestore_client/thread_locks.py": "raft_client/thread_locks.py",
}

#: What a name of the asyncio shell is called in the blocking one.
NAMES: Final = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "aio": "sync",
    "aio_connector": "sync_connector",
    "check_loop": "check_process",
    "share_aio": "share_sync",
    "AsyncBarrier": "Barrier",
    "AsyncCounter": "Counter",
    "AsyncElection": "Election",
    "AsyncEntries": "Entries",
    "AsyncEventIterator": "EventIterator",
    "AsyncGuardedStore": "GuardedStore",
    "AsyncKeyLease": "KeyLease",
    "AsyncKeyMirror": "KeyMirror",
    "AsyncKeyRange": "KeyRange",
    "AsyncKeyValues": "KeyValues",
    "AsyncLease": "Lease",
    "AsyncLeaseStore": "LeaseStore",
    "AsyncLock": "Lock",
    "AsyncLockObservation": "LockObservation",
    "AsyncMembers": "Members",
    "AsyncMembersWatch": "MembersWatch",
    "AsyncMirrorChanges": "MirrorChanges",
    "AsyncPartitioner": "Partitioner",
    "AsyncRaftClient": "RaftClient",
    "AsyncSemaphore": "Semaphore",
    "AsyncSiteClient": "SiteClient",
    "AsyncSiteStream": "SiteStream",
    "AsyncStateStoreClient": "StateStoreClient",
    "AsyncSubscriber": "Subscriber",
    "AsyncWatch": "Watch",
}

#: What is said of tasks -> what is said of threads.
PHRASES: Final = {
    "The asyncio client.": "The blocking client.",
    "Any number of tasks of one event loop may share a client; other loops and forked processes may not.": (
        "Any number of threads may share a client; a process forked from this one may not."
    ),
    "in another task": "in another thread",
    "a task of the client calls it with one state after the other, awaits it": (
        "a task of the client calls it with one state after the other, awaits it"
    ),
    "a task that hangs": "a task that hangs",
    "in a task of the client then": "in a task of the client then",
    "another task acquires": "another thread acquires",
    "tasks that compete": "threads that compete",
    "Iterating waits until": "Iterating blocks until",
    "In the asyncio client they may be coroutine functions": "In the asyncio client they may be coroutine functions",
    "In the asyncio client it may be a coroutine function": "In the asyncio client it may be a coroutine function",
}

_WORD: Final = re.compile(r"\w+")
_ONLY: Final = re.compile(r"#\s*asyncio only: \S")
_MARK: Final = "# Generated from"
_FOREIGN_NAME: Final = re.compile(
    r"(^|_)(async|asyncio|await|awaited|aio)(_|$)|^_*Async[A-Z]|StopAsync|[Aa]waitable|[Cc]oroutine|^(anext|aiter|aclose|aclosing)$"
)
_FOREIGN_TEXT: Final = re.compile(
    r"\b(async\w*|await\w*|aio|coroutines?|tasks?|event loops?|(the|other|another|one) loops?)\b", re.IGNORECASE
)
_LAYOUT: Final = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


class TwinError(Exception):
    """A source cannot be translated: where, what, and what to do about it."""

    def __init__(self, path: str, line: int | None, advice: str) -> None:
        super().__init__(f"{path}: {advice}" if line is None else f"{path}:{line}: {advice}")


class Tables:
    """Both tables, and which of their entries were of use."""

    def __init__(self, names: Mapping[str, str] = NAMES, phrases: Mapping[str, str] = PHRASES) -> None:
        self._names = names
        self._phrases = phrases
        self._used: set[str] = set()
        longest_first = sorted(phrases, key=len, reverse=True)
        self._phrase = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @property
    def unused(self) -> list[str]:
        """Entries that no source needs."""
        return [entry for entry in (*self._names, *self._phrases) if entry not in self._used]

    def name(self, name: str) -> str:
        """A name as the blocking shell has it."""
        if name not in self._names:
            return name
        self._used.add(name)
        return self._names[name]

    def text(self, text: str) -> tuple[str, str]:
        """A text as the blocking shell has it, and the same without its phrases: what may be searched for leftovers."""
        found = [match[0] for match in self._phrase.finditer(text)]
        self._used.update(found)
        plain = [_WORD.sub(lambda word: self.name(word[0]), piece) for piece in self._phrase.split(text)]
        told = [self._phrases[phrase] for phrase in found]
        return "".join(map("".join, zip(plain, [*told, ""], strict=True))), "|".join(plain)


class _Token(NamedTuple):
    kind: int
    text: str
    start: int
    end: int
    line: int


def translate(source: str, path: str, tables: Tables) -> str:
    """The blocking twin of a module, before ruff has tidied it. ``path`` is for what errors say."""
    _check_generators(source, path)
    end, pieces = 0, []
    for statement in _statements(source):
        for start, stop, replacement in _edits(statement, source, path, tables):
            pieces += [source[end:start], replacement]
            end = stop
    return "".join((*pieces, source[end:]))


def _check_generators(source: str, path: str) -> None:
    """A generator ends by returning. StopIteration raised in one is a RuntimeError, with threads as with tasks."""
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise TwinError(path, error.lineno, f"this is not Python: {error.msg}") from None
    for function in ast.walk(module):
        if isinstance(function, ast.AsyncFunctionDef):
            nodes = list(_own_nodes(function))
            stops = [n for n in nodes if isinstance(n, ast.Raise) and "StopAsyncIteration" in ast.dump(n)]
            if stops and any(isinstance(node, ast.Yield) for node in nodes):
                raise TwinError(path, stops[0].lineno, "a generator that raises StopAsyncIteration; let it return")


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from _own_nodes(node)


def _statements(source: str) -> Iterator[list[_Token]]:
    """The tokens of each logical line, with the comments above it."""
    statement: list[_Token] = []
    for token in _tokens(source):
        statement.append(token)
        if token.kind in (tokenize.NEWLINE, tokenize.ENDMARKER):
            yield statement
            statement = []


def _tokens(source: str) -> Iterator[_Token]:
    """Tokens with their places in the text. An f-string is one token in every Python, as it is in 3.11."""
    lines = [0, *accumulate(len(line) for line in io.StringIO(source))]
    opened: list[tuple[int, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        start, end = (lines[row - 1] + column for row, column in (token.start, token.end))
        kind = tokenize.tok_name[token.type]
        if kind.endswith("STRING_START"):
            opened.append((start, token.start[0]))
        elif kind.endswith("STRING_END"):
            start, line = opened.pop()
            if not opened:
                yield _Token(tokenize.STRING, source[start:end], start, end, line)
        elif not opened:
            yield _Token(token.type, token.string, start, end, token.start[0])


def _edits(tokens: Sequence[_Token], source: str, path: str, tables: Tables) -> Iterator[tuple[int, int, str]]:
    """What to replace in a statement, in the order of the text."""
    code = [token for token in tokens if token.kind not in _LAYOUT]
    is_import = bool(code) and code[0].text in ("from", "import")
    only_asyncio = bool(code) and any(_ONLY.match(token.text) for token in tokens if token.start > code[0].start)
    brackets = _brackets_of_awaitables(code)
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if only_asyncio and token is code[0]:
            yield source.rfind("\n", 0, token.start) + 1, tokens[-1].end, ""
            return
        if token.start in brackets:
            yield token.start, token.end, ""
        elif token.text in ("async", "await"):
            yield token.start, following.start, ""
        elif token.kind == tokenize.NAME:
            if not (is_import and token.text == "Awaitable"):
                yield token.start, token.end, _name(token, path, tables)
        elif token.kind in (tokenize.STRING, tokenize.COMMENT):
            yield token.start, token.end, _text(token, path, tables)


def _brackets_of_awaitables(code: Sequence[_Token]) -> set[int]:
    """Where there is ``Awaitable``, ``[`` and its ``]``, in annotations."""
    found: set[int] = set()
    opened: list[bool] = []
    for token, following in zip_longest(code, code[1:]):
        if token.text == "[":
            opened.append(token.start in found)
        elif token.text == "]" and opened.pop():
            found.add(token.start)
        elif token.text == "Awaitable" and following is not None and following.text == "[":
            found |= {token.start, following.start}
    return found


def _name(token: _Token, path: str, tables: Tables) -> str:
    name = tables.name(token.text)
    if name == token.text and _FOREIGN_NAME.search(name):
        raise TwinError(
            path,
            token.line,
            f"{name!r} has no counterpart in threads: put what needs it into a primitive that both shells have under "
            "one name; if the blocking shell has it under another name, add it to NAMES in tools/twins.py",
        )
    return name


def _text(token: _Token, path: str, tables: Tables) -> str:
    text, searched = tables.text(token.text)
    if (foreign := _FOREIGN_TEXT.search(searched)) is not None:
        raise TwinError(
            path,
            token.line + searched.count("\n", 0, foreign.start()),
            f"{foreign[0]!r} is left in the text: say it in words that are true of both shells, or add the phrase to "
            "PHRASES in tools/twins.py",
        )
    return text


def tidy(text: str, path: str) -> str:
    """Imports sorted and cleaned, formatted; raises :class:`TwinError` with what ruff finds besides."""
    for step in (["check", "--fix", "--config", 'lint.extend-safe-fixes = ["UP028"]'], ["format"]):
        done = subprocess.run(  # noqa: S603 - our own program and arguments
            [sys.executable, "-m", "ruff", *step, "--quiet", "--stdin-filename", path, "-"],
            input=text, capture_output=True, encoding="utf-8", cwd=ROOT, check=False,
        )  # fmt: skip
        if done.returncode:
            complaints = done.stderr or done.stdout
            raise TwinError(path, None, f"the twin does not pass ruff {step[0]}; mend its source\n{complaints}")
        text = done.stdout
    return text


def _twin(package: str, module: str, tables: Tables) -> tuple[Path, str]:
    source = f"{package}/aio/{module}.py"
    twin = f"{package}/sync/{module}.py"
    head = f'{_MARK} {source} by tools/twins.py. Edit that, and run "make twins".\n'
    return ROOT / twin, tidy(head + translate((ROOT / source).read_text("utf-8"), source, tables), twin)


def _copy(source: str, copy: str) -> tuple[Path, str]:
    """The module with the names of the other package."""
    text = (ROOT / source).read_text("utf-8").replace(source.partition("/")[0], copy.partition("/")[0])
    return ROOT / copy, tidy(f'{_MARK} {source} by tools/twins.py. Edit that, and run "make twins".\n{text}', copy)


def main(arguments: Sequence[str]) -> str | None:
    """What is wrong; None when nothing is."""
    is_check = list(arguments) == ["--check"]
    if arguments and not is_check:
        return __doc__
    tables = Tables()
    stale = []
    try:
        twins = dict(_twin(package, module, tables) for package, modules in TWINS.items() for module in modules)
        twins |= dict(_copy(source, copy) for source, copy in COPIES.items())
    except TwinError as error:
        return str(error)
    for path, text in twins.items():
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(str(path.relative_to(ROOT)))
            if not is_check:
                path.write_text(text, "utf-8")
    marked = [path for package in TWINS for path in sorted((ROOT / package / "sync").glob("*.py"))]
    orphans = [
        str(path.relative_to(ROOT))
        for path in marked
        if path not in twins and path.read_text("utf-8").startswith(_MARK)
    ]
    problems = [f"{path} is marked as generated, and TWINS in tools/twins.py does not name it" for path in orphans]
    problems += [f"no source needs {entry!r} in the tables of tools/twins.py; take it out" for entry in tables.unused]
    if is_check:
        problems += [f'{path} is stale: run "make twins"' for path in stale]
    return "\n".join(problems) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
