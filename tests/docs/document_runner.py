"""Runs the code of one Markdown document from top to bottom, and compares the output that it shows.

What a fenced block's language means:

=============  ======================================================================================================
``python``     executed; the blocks of a document share one namespace. A block whose first line is ``# name.py`` is
               written to that file instead
``pycon``      an interactive session: statements and the output they must have
``bash``       executed by one ``bash -euo pipefail`` per document, so that variables last
``console``    the same for the lines that begin with ``$ ``; the other lines are the output they must have, standard
               error included. ``statestore serve`` is stopped once it has said where it listens
``output``     what the block before it must have printed
``text``       no code: diagrams, tables, wire formats
``json``       must be JSON
``yaml``       must be YAML
``dockerfile`` no rule here: ``test_service_examples`` looks at it
``ini``        the same
``{...}``      a Sphinx directive; not ours to run
=============  ======================================================================================================

Anything else fails. Three invisible comments exist: ``<!-- not run: why -->`` before a block exempts it, if all its
commands are on the list :data:`EXEMPT`, or if the comment is ``PAGE has it, and is run`` and that page has it;
``<!-- real peers only: why -->`` exempts it where scripted peers stand in for a ØMQ Raft cluster;
``<!-- invisible-code-block: python … -->`` holds code that would disturb the reader.

Documents talk to ``mqtt://127.0.0.1:1883``, the server that a reader would start, and to three peers of a ØMQ Raft
cluster, ``tcp://127.0.0.1:8047`` and so on. Here, the ports are replaced in the source by those of an embedded server
and of peers that the test started, and put back in the output. Text that differs from run to run (versions, client ids,
request ids, durations) is compared by its form.
"""

from __future__ import annotations

import doctest
import gc
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import yaml
from page_shell import PageShell
from sybil import Document, Example, Region
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

import statestore_client

__all__ = ["EXEMPT", "DocumentRun", "run_document"]

#: Commands that a document may show without running them: they install, build, or take minutes.
EXEMPT: Final = (
    r"make( (demo|demo-ha|rehearse|test|bench|docs|lint|help))?",
    r"git clone \S+",
    r"cd statestore-client",
    r"cd examples",
    r"python -m flights --events \d+ --rate \d+",
    r"(python3? -m )?pip install (--\w+ )?['\"]?(statestore-client|\.)(\[[a-z,]+\])?['\"]?",
    r"pip install '\.\[spark,demo\]' -r examples/flights/requirements\.txt",
    r"python3? tests/bench/\w+\.py",
    r"sudo apt-get install( [a-z0-9+-]+)+",
    r"openssl req -x509( [\w=:,./-]+)+",
    r"docker (build|run)( [\w=:,./$-]+)+",
    r"sudo (python3 -m venv /opt/statestore|/opt/statestore/bin/pip install statestore-client)",
    r"sudo useradd --system --no-create-home statestore",
    r"npm_config_zmq_external=true npm install",
    r"node node_modules/zmq-raft/bin/zmq-raft\.js -c node_modules/zmq-raft/config/example\.hjson \d( &)?",
    r"zmqraft serve( --insecure)?( --[a-z-]+ \S+)+( &)?",
    r"zmqraft (add-peer|remove-peer|transfer) \d( tcp://\S+)?",
    r"export ZMQRAFT_(URL|CURVE_PEER_KEYS)='?tcp://10\.0\.0\.1:8047\S*",
    r"zmqraft config --curve-secret-key-file dashboard\.key_secret",
    r"statestore serve( --port \d+)? --site \w+ --site-listen \S+( --curve-keys \S+)?( --peer \S+)?( &)?",
    r"statestore serve --broker \S+( --cluster \S+ --id \w+)?( --data \S+)?( --cluster-key-file \S+)?",
    r"export (STATESTORE_SITE_URL|ROME)=tcp://127\.0\.0\.1:730[12]",
)

_PORT: Final = "1883"
#: Of the peers that the tutorial starts.
_PEER_PORTS: Final = ("8047", "8147", "8247")
#: Of servers that replace each other, on one machine: for clients, the first of three for each other, and for figures.
_SERVER_PORTS: Final = (("1885", "8050", "9101"), ("1886", "8060", "9102"), ("1887", "8070", "9103"))
_NOT_RUN: Final = re.compile(r"<!-- not run: (?P<why>[^>]+) -->\s*\Z")
_RUN_ELSEWHERE: Final = re.compile(r"(?P<page>\S+\.md) has it, and is run")
_REAL_PEERS_ONLY: Final = re.compile(r"<!-- real peers only: (?P<why>[^>]+) -->\s*\Z")
_FILE: Final = re.compile(r"# (?P<name>\w+\.py)\n")

#: Of this interpreter: how each is started.
_PROGRAMS: Final = {
    "statestore": "-m statestore_client.cli",
    "zmqraft": "-m raft_client.cli",
    "pytest": "-m pytest",
    "python": "",
}

#: What differs from run to run, and what stands for it in comparisons.
_FORMS: Final = (
    (re.compile(r"HlcTimestamp\(wall_ms=\d+, counter=\d+, node_id='[^']*'\)"), "<version>"),
    (re.compile(r"\b\d{15}:\d{5}:[\w-]+"), "<version>"),
    (re.compile(r"\bstatestore-client-[0-9a-f]{32}\b(:[0-9a-f]{32}\b)?"), "<client id>"),
    (re.compile(r"\bin \d+\.\d+s\b"), "in <time>"),
    (re.compile(r"\b[0-9a-f]{24}\b"), "<request id>"),
    (re.compile(r"\b(\d+)@\d+\b"), r"\1@<term>"),  # of a position: there may have been more elections
)


def run_document(path: Path, directory: Path, url: str, peers: Sequence[str] = (), *, real: bool = False) -> None:
    """Run ``path`` in the empty ``directory`` against the server at ``url`` and the cluster with the URLs ``peers``.

    ``real`` says that the peers are not scripted. Raises AssertionError with the line, and for what the page has opened
    and dropped: a reader's program would be warned of it.
    """
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        gc.freeze()  # what is there already is not this page's
        try:
            _run_blocks(path, directory, url, peers, real=real)
            gc.collect()
        finally:
            gc.unfreeze()
    dropped = [str(each.message) for each in found if each.category is ResourceWarning]
    assert not dropped, f"{path.name} does not close what it opens: {dropped}"


def _run_blocks(path: Path, directory: Path, url: str, peers: Sequence[str], *, real: bool) -> None:
    with DocumentRun(path, directory, url, peers, real=real) as run:
        for example in Document.parse(str(path), run.regions).examples():
            run.evaluate(example)


class DocumentRun:
    """The state that the blocks of one document share."""

    def __init__(self, path: Path, directory: Path, url: str, peers: Sequence[str] = (), *, real: bool = False) -> None:
        self._path = path
        self._directory = directory
        self._port = str(urlsplit(url).port)
        #: Ports as a document shows them -> as they are.
        self._ports = {_PORT: self._port} | {p: str(urlsplit(u).port) for p, u in zip(_PEER_PORTS, peers, strict=False)}
        if _SERVER_PORTS[0][1] in path.read_text():
            self._ports |= _ports_of_servers()
        self._real = real
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._output = ""
        self._shell: PageShell | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shell is not None:
            self._shell.close()

    def regions(self, document: Document) -> Iterator[Region]:
        """Every fenced block, of any language or none, and every invisible block."""
        fenced = RawFencedCodeBlockLexer(re.compile(r"(?P<language>[^\n]*)\n"))
        invisible = DirectiveInHTMLCommentLexer("invisible-code-block")
        for region in fenced(document):
            before = document.text[: region.start]
            not_run = _NOT_RUN.search(before)
            region.lexemes["not_run"] = not_run and not_run["why"]
            region.lexemes["real_only"] = _REAL_PEERS_ONLY.search(before) is not None
            yield region
        for region in invisible(document):
            region.lexemes |= {"language": region.lexemes["arguments"], "not_run": None, "real_only": False}
            yield region

    def evaluate(self, example: Example) -> None:
        """Run one block."""
        lexemes = example.region.lexemes
        language, source = str(lexemes["language"]).strip(), str(lexemes["source"])
        where = f"{self._path.name}:{example.line}"
        if lexemes["not_run"]:
            if elsewhere := _RUN_ELSEWHERE.fullmatch(lexemes["not_run"]):
                page = self._path.parent / elsewhere["page"]
                assert f"```{language}\n{source}```" in page.read_text(), f"{where}: {page} does not have it"
            else:
                _check_exempt(source, where)
            return
        if lexemes["real_only"] and not self._real:
            return
        source = _replace_words(source, self._ports)
        match language:
            case "python":
                self._python(source, where, example.line)
            case "pycon":
                self._session(source, where, example.line)
            case "bash":
                self._output = self._command(source, where)
            case "console":
                self._console(source, where)
            case "output":
                self._compare(source, self._output, where)
            case "json":
                json.loads(source)
            case "yaml":
                assert all(yaml.safe_load_all(source)), f"{where}: an empty document"
            case "text" | "dockerfile" | "ini":
                pass
            case _ if language.startswith("{"):
                pass
            case _:
                raise AssertionError(f"{where}: no rule says how to test a block of the language {language!r}")

    # -- languages -----------------------------------------------------------------------------------------------------

    def _python(self, source: str, where: str, line: int) -> None:
        if named := _FILE.match(source):
            (self._directory / named["name"]).write_text(source)
            return
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * line + source, str(self._path), "exec", dont_inherit=True), self._namespace)  # noqa: S102 - the documents are ours
        self._output = printed.getvalue()

    def _session(self, source: str, where: str, line: int) -> None:
        test = doctest.DocTestParser().get_doctest(source, self._namespace, where, str(self._path), line)
        test.globs = self._namespace  # not the copy: later blocks go on with it
        runner = doctest.DocTestRunner(_Checker(self._shown), optionflags=doctest.ELLIPSIS, verbose=False)
        report = io.StringIO()
        runner.run(test, out=report.write, clear_globs=False)
        assert runner.failures == 0, f"{where}:\n{report.getvalue()}"

    def _console(self, source: str, where: str) -> None:
        for command, expected in _commands(source, where):
            serving = shlex.split(command)[:2] == ["statestore", "serve"]
            got = self._serve(command) if serving else self._command(command, where)
            self._compare(expected, got, f"{where}: {command}")

    def _command(self, command: str, where: str) -> str:
        if self._shell is None:
            self._shell = PageShell(self._directory, _environment(self._directory))
        return self._shell.run(command, where)

    def _serve(self, command: str) -> str:
        """Start the server on a free port, wait for its address, and end it as Ctrl-C would."""
        words = shlex.split(command)[1:]
        shown = words[words.index("--port") + 1] if "--port" in words else self._port
        arguments = [sys.executable, "-m", "statestore_client.cli", *words, "--port", "0"]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, text=True, env=_environment(self._directory)
        ) as server:
            assert server.stdout is not None
            line = server.stdout.readline()
            server.send_signal(signal.SIGINT)
            assert server.wait(10) == 0
        return re.sub(r":\d+$", f":{shown}", line)

    # -- output --------------------------------------------------------------------------------------------------------

    def _compare(self, expected: str, got: str, where: str) -> None:
        assert self._shown(got) == self._shown(expected), f"{where}: expected\n{expected}\nand got\n{got}"

    def _shown(self, text: str) -> str:
        text = _replace_words(text, {actual: shown for shown, actual in self._ports.items()}).strip()
        for pattern, stand_in in _FORMS:
            text = pattern.sub(stand_in, text)
        return "\n".join(line.rstrip() for line in text.splitlines())


class _Checker(doctest.OutputChecker):
    """Compares what stays the same from run to run."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        # doctest wants the line feed that the normal form has lost.
        return super().check_output(f"{self._shown(want)}\n", f"{self._shown(got)}\n", optionflags)


def _ports_of_servers() -> dict[str, str]:
    """Ports as a document shows them -> as they are; nobody else takes these."""
    from support.ports import (  # beside the tests, where this file as a program does not look
        reserved_port,
        reserved_ports,
    )

    found = {}
    for client, internal, figures in _SERVER_PORTS:
        found |= {client: str(reserved_port()), figures: str(reserved_port())}
        first = reserved_ports(3)
        found |= {str(int(internal) + n): str(first + n) for n in range(3)}
    return found


def _replace_words(text: str, words: Mapping[str, str]) -> str:
    return re.sub(rf"\b({'|'.join(words)})\b", lambda found: words[found[0]], text)


def _commands(source: str, where: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, with the output under it."""
    command: list[str] = []
    output: list[str] = []
    for line in source.splitlines():
        if line.startswith("$ "):
            if command:
                yield "\n".join(command), "\n".join(output)
            command, output = [line[2:]], []
        elif line.startswith("> ") and command and not output:
            command.append(line[2:])
        else:
            assert command, f"{where}: a console block begins with a line that starts with '$ '"
            output.append(line)
    if command:
        yield "\n".join(command), "\n".join(output)


def _check_exempt(source: str, where: str) -> None:
    for line in source.splitlines():
        command = line.removeprefix("$ ").split("  #")[0].strip()
        if command and not any(re.fullmatch(pattern, command) for pattern in EXEMPT):
            raise AssertionError(f"{where}: {command!r} is not run, and not on the list of commands that need not")


def _environment(directory: Path) -> dict[str, str]:
    """The environment of programs: ``statestore``, ``python`` and ``pytest`` are those of this interpreter."""
    programs = directory / ".bin"
    programs.mkdir(exist_ok=True)
    for name, arguments in _PROGRAMS.items():
        program = programs / name
        if not program.exists():
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
            program.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AIO_", "PYTEST_"))}
    # In a checkout the package is found by its path, and pytest finds the fixtures by their name.
    environment["PYTHONPATH"] = str(Path(statestore_client.__file__).parents[1])
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    environment["COLUMNS"] = "80"
    # Without it, pytest-asyncio prints advice, which is not output of the document.
    environment["PYTEST_ADDOPTS"] = "-o asyncio_default_fixture_loop_scope=function"
    found = {e.name for e in entry_points(group="pytest11")}
    environment["PYTEST_PLUGINS"] = ",".join(
        f"{p}.pytest_plugin" for p in ("statestore_client", "raft_client") if p not in found
    )
    return environment


if __name__ == "__main__":
    run_document(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
