"""Every block of code in README.md and docs/ does what the text around it says.

``document_runner`` explains how a block is run, how ``mqtt://127.0.0.1:1883`` in a text becomes the address of an
embedded server of the test, and which blocks need not run. Pages about ØMQ Raft run twice: against scripted peers, and
against real ones where Node is installed.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from document_runner import run_document
from support.spark import require_java

from raft_client import RaftSettings, SettingsError
from raft_client.errors import __all__ as raft_errors
from raft_client.spark.options import OF_NO_USE, ReadOptions, StreamOptions, WriteOptions, option_name, parse_options
from raft_client.wire import client_requests, peer_messages, streams
from statestore_client import ConnectionSettings
from statestore_client.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUNNER = Path(__file__).with_name("document_runner.py")

#: Documents that start a JVM. It must be one of their own: a process holds a single Spark session.
SPARK = DOCS / "how-to" / "spark.md"
RAFT_SPARK = DOCS / "how-to" / "raft-spark.md"
PIPELINE = DOCS / "how-to" / "pipeline-failover.md"
AGGREGATE = DOCS / "how-to" / "spark-aggregate.md"
SQL = DOCS / "how-to" / "spark-sql.md"
#: Starts peers of its own: test_own_machine_page.py runs it.
OWN_MACHINE = DOCS / "how-to" / "raft-own-machine.md"

PAGES = [
    ROOT / "README.md",
    ROOT / "examples/README.md",
    *sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts),
]
#: Documents that talk to the peers of a cluster.
RAFT = [p for p in PAGES if 'RaftClient("tcp://127.0.0.1:8047' in p.read_text() and p not in (RAFT_SPARK, OWN_MACHINE)]
#: Their blocks start servers and processes, one after the other.
SLOW = [
    DOCS / "operations/runbook.md",
    *(DOCS / "how-to" / name for name in ("keep-data.md", "secure.md", "test-your-app.md", "use-the-command-line.md")),
]
DOCUMENTS = [
    pytest.param(p, marks=(pytest.mark.slow, pytest.mark.turns(3), pytest.mark.timeout(600))) if p in SLOW else p
    for p in PAGES
    if p not in (SPARK, RAFT_SPARK, PIPELINE, AGGREGATE, SQL, OWN_MACHINE, *RAFT)
]


#: Pages that break a connection, or have a client refused, to show what happens then.
WARNED_ON_PURPOSE = {
    DOCS / "how-to" / name
    for name in (
        "connect.md",
        "raft-members.md",
        "run-a-cluster.md",
        "run-two-servers.md",
        "secure.md",
        "share-a-prefix.md",
        "test-your-app.md",
    )
}


@pytest.fixture
def silent(path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails when a warning is logged: Python prints it to whoever follows a page, and no block shows it."""
    yield
    records = [r for r in caplog.get_records("call") if r.name.startswith(("statestore_", "raft_"))]
    warnings = [record.getMessage() for record in records if record.levelno >= logging.WARNING]
    assert bool(warnings) == (path in WARNED_ON_PURPOSE), warnings


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_runs(path: Path, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document's code runs from top to bottom, prints what the document shows, and logs no warning."""
    monkeypatch.chdir(tmp_path)
    run_document(path, tmp_path, server.url)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("path", RAFT, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_raft_block_runs(
    path: Path, server: EmbeddedServer, scripted_peers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document's code runs and prints what the document shows, apart from the blocks for real peers only."""
    monkeypatch.chdir(tmp_path)
    run_document(path, tmp_path, server.url, scripted_peers)


@pytest.mark.interop
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("path", RAFT, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_raft_block_runs_against_real_peers(
    path: Path, server: EmbeddedServer, real_peers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the document's code runs and prints what the document shows."""
    monkeypatch.chdir(tmp_path)
    run_document(path, tmp_path, server.url, real_peers, real=True)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("path", RAFT, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_raft_block_runs_against_our_peers(
    path: Path, server: EmbeddedServer, our_peers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the document's code does the same with the peers of this package, which the tutorial starts."""
    monkeypatch.chdir(tmp_path)
    run_document(path, tmp_path, server.url, our_peers, real=True)


def test_the_tutorial_starts_peers_with_the_addresses_of_the_pages() -> None:
    """Three peers, each told of all three, and each with a directory of its own."""
    text = (DOCS / "tutorial" / "replicated-log.md").read_text()
    started = re.findall(r"^\$ zmqraft serve --id (\d) --data raft/(\d) (.*) &$", text, re.MULTILINE)
    members = " ".join(f"--peer {n}=tcp://127.0.0.1:{port}" for n, port in enumerate((8047, 8147, 8247), 1))
    assert started == [(str(n), str(n), members) for n in (1, 2, 3)]


@pytest.mark.interop
def test_the_pages_start_the_node_peers_that_the_tests_start(zmq_raft: Path) -> None:
    """The page about clusters installs the packages that the tests install, and their peers have the addresses that
    the pages use."""
    text = (DOCS / "how-to" / "run-a-cluster.md").read_text()
    (shown,) = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    installed = json.loads((zmq_raft / "package.json").read_text())
    assert {k: json.loads(shown)[k] for k in ("dependencies", "overrides")}.items() <= installed.items()
    (config,) = set(re.findall(r"-c (node_modules/\S+)", text))
    urls = re.findall(r'^[^#\n]*\burl: "(tcp://127.0.0.1:\d+)"', (zmq_raft / config).read_text(), re.MULTILINE)
    assert urls == [f"tcp://127.0.0.1:{port}" for port in (8047, 8147, 8247)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.timeout(600)  # a Java process and a dozen jobs: 20 s, and several times that on a busy machine
@pytest.mark.parametrize("path", [SPARK, RAFT_SPARK, PIPELINE, AGGREGATE, SQL], ids=lambda path: path.name)
def test_every_spark_block_runs(path: Path, server: EmbeddedServer, scripted_peers: list[str], tmp_path: Path) -> None:
    """The Spark document's code runs from top to bottom and prints what the document shows."""
    pytest.importorskip("pyspark")
    pytest.importorskip("pyarrow")
    require_java()
    arguments = [sys.executable, RUNNER, path, tmp_path, server.url, *scripted_peers]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # with this folder, also where -P is set
    done = subprocess.run(
        arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=590, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# -- the runner itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```ruby\nputs 1\n```\n", "no rule says how to test"),
        ("```\nwhat is this\n```\n", "no rule says how to test"),
        ("```json\n{a: 1}\n```\n", "Expecting property name"),
        ("```pycon\n>>> 1 + 1\n3\n```\n", "Expected"),
        ("```python\nprint(1)\n```\n```output\n2\n```\n", "expected"),
        ("```console\n$ echo one\ntwo\n```\n", "expected"),
        ("```bash\nfalse\ntrue\n```\n", "ended with code 1"),
        ("<!-- not run: too dangerous -->\n```bash\nrm -rf build\n```\n", "not on the list"),
        ("<!-- not run: other.md has it, and is run -->\n```python\nx = 1\n```\n", "does not have it"),
        ("<!-- not run: hides a second command -->\n```bash\nmake test\nstatestore get x\n```\n", "not on the list"),
    ],
    ids=[
        "language",
        "no-language",
        "json",
        "session",
        "output",
        "console",
        "exit-code",
        "exempt",
        "elsewhere",
        "second-command",
    ],
)
def test_a_wrong_document_fails(text: str, complaint: str, tmp_path: Path) -> None:
    """A document fails its test if a block prints something else than it shows, or is of a kind that cannot be run."""
    (tmp_path / "other.md").write_text("```python\nx = 2\n```\n")
    document = tmp_path / "wrong.md"
    document.write_text(text)
    with pytest.raises((AssertionError, ValueError), match=complaint):
        run_document(document, tmp_path, "mqtt://127.0.0.1:1883")


def test_a_page_that_drops_a_client_fails(server: EmbeddedServer, tmp_path: Path) -> None:
    """A page that opens a client and does not close it fails its own test, and not a later one's."""
    document = tmp_path / "wrong.md"
    opened = f'from statestore_client import StateStoreClient\nstore = StateStoreClient("{server.url}").open()'
    document.write_text(f"```python\n{opened}\n```\n")
    with pytest.raises(AssertionError, match=r"wrong\.md does not close what it opens: .*state store client"):
        run_document(document, tmp_path, server.url)


def test_a_failing_python_block_names_its_line(tmp_path: Path) -> None:
    """The traceback of a failing Python block points to the block's line in the document."""
    document = tmp_path / "wrong.md"
    document.write_text("# Title\n\n```python\nx = 1\nx / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_document(document, tmp_path, "mqtt://127.0.0.1:1883")
    last = caught.traceback[-1]
    assert (Path(last.path), last.lineno + 1) == (document, 5)


# -- completeness ------------------------------------------------------------------------------------------------------


def test_options_of_kafka_lead_to_those_of_the_table() -> None:
    """Each option of Kafka's source is refused with the name that the page has beside it, or it is the same here."""
    text = (DOCS / "how-to/from-kafka.md").read_text().partition("| Option or column of Kafka |")[2]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", text.partition("| other settings")[0], re.MULTILINE)
    theirs = {option: ours for options, ours in rows for option in re.findall(r"`([\w.]+)`", options)}
    assert len(theirs) > 15
    for option, ours in theirs.items():
        with pytest.raises(SettingsError) as caught:
            parse_options({"seeds": "tcp://127.0.0.1:1", option: "?"}, {}, kind=StreamOptions)
        if ours.startswith("the same"):
            assert f"the option {option} must be" in caught.value.message
        elif ours.startswith("leave it out"):
            assert f"unknown option {option.lower()}: " in caught.value.message
        else:
            assert f"did you mean {ours.split('`')[1]}?" in caught.value.message


def test_every_figure_has_its_command_and_its_date() -> None:
    """Each row of figures names a benchmark that exists, or the demo, and a day, and no text outside of the tables has
    a date. The picture shows figures of the tables alone.
    """
    folder = DOCS / "explanation"
    text = (folder / "performance.md").read_text()
    figures, _, measuring = text.partition("\n## Figures\n")[2].partition("\n## How to measure\n")
    rows = [line for line in figures.splitlines() if line.startswith("|") and not line.startswith(("| What ", "|---"))]
    assert len(rows) > 50
    benchmarks = {path.name for path in (ROOT / "tests/bench").glob("bench_*.py")}
    for row in rows:
        found = re.search(r" \| `(bench_\w+\.py|make demo)[^`]*` \| 20\d\d-\d\d-\d\d \|$", row)
        assert found is not None, row
        assert found[1] in benchmarks | {"make demo"}
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert [line for line in prose if re.search(r"\b20\d\d-\d\d", line)] == []
    assert benchmarks - set(re.findall(r"bench_\w+\.py", measuring)) == set()
    drawn = re.findall(r'class="ratio"[^>]*>([\d.]+)<', (folder / "pictures/ratios.svg").read_text())
    assert len(drawn) > 5
    assert set(drawn) <= set(re.findall(r"[\d.]*\d", figures))


def test_every_setting_is_described() -> None:
    """The reference has a row for each connection setting and each environment variable."""
    text = (DOCS / "reference" / "settings.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert {a.name for a in attrs.fields(ConnectionSettings)} <= rows


RAFT_REFERENCE = DOCS / "reference" / "raft.md"


def _rows(page: Path) -> set[str]:
    """What the first columns of a page's tables name."""
    return set(re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE))


def test_every_raft_setting_is_described() -> None:
    """The reference has a row for each setting of a cluster."""
    assert {a.name for a in attrs.fields(RaftSettings)} <= _rows(RAFT_REFERENCE)


def test_every_option_of_spark_and_the_log_is_described() -> None:
    """The reference has a row for each option of a batch read, of a stream, of the sink, and of their connection."""
    settings = {option_name(a.name) for a in attrs.fields(RaftSettings)} - {option_name(name) for name in OF_NO_USE}
    options = {option_name(a.name) for kind in (ReadOptions, StreamOptions, WriteOptions) for a in attrs.fields(kind)}
    assert settings | options <= _rows(DOCS / "reference" / "raft-spark.md")


def test_every_rpc_is_described_with_its_bytes() -> None:
    """The reference has a section for each message, with its type, as the published protocol numbers them."""
    text = (DOCS / "reference" / "raft-messages.md").read_text()
    sections = dict(re.findall(r"^## (\w+)$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    for name, request in {**vars(client_requests), **vars(peer_messages), **vars(streams)}.items():
        # Types of two bytes are not of the protocol; ConfigProposal is how a peer reads a ConfigUpdate.
        if len(getattr(request, "TYPE", b"")) == 1 and not name.endswith(("Reply", "Proposal")):
            assert f"`{request.TYPE.hex()}`" in sections[name], name
    assert {"ClientDispatch", "StateBroadcast"} <= sections.keys()


def test_every_raft_error_is_described() -> None:
    """The reference says what to do about each error that can be caught."""
    assert set(raft_errors) <= _rows(RAFT_REFERENCE)


def test_what_the_raft_clients_do_otherwise_is_told() -> None:
    """The reference lists the differences from the document, the search in parallel first, each with its tests."""
    section = re.search(r"^### Differences from the document$(.*?)(?=^##)", RAFT_REFERENCE.read_text(), re.M | re.S)
    assert section is not None
    rows = re.findall(r"^\| (.*) \|$", section[1], re.MULTILINE)[1:]
    assert "All known peers are asked at once" in rows[0]
    assert [row for row in rows if "`test_" not in row.rpartition(" | ")[2]] == []


def test_the_raft_reference_names_tests_that_exist() -> None:
    """Every test that the raft reference names exists."""
    named = set(re.findall(r"`(test_\w+)`", RAFT_REFERENCE.read_text()))
    sources = "".join(p.read_text() for p in (ROOT / "tests").glob("raft_*/test_*.py"))
    assert {name for name in named if f"def {name}(" not in sources} == set()


#: A directive for a name, made from its docstring. On a forge, readers see nothing of it but the directive.
_MADE = re.compile(r"^\.\. auto(?:class|exception|function|data):: ([\w.]+?)(\w+)(?:\(\))?$", re.MULTILINE)
REFERENCE = [path for path in PAGES if _MADE.search(path.read_text())]


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.name)
def test_names_of_the_reference_are_public_and_stand_in_the_text(path: Path) -> None:
    """A name that a page makes from the source is in an ``__all__``, and the page's own text has it, too."""
    text = path.read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    made = _MADE.findall(text)
    assert [m + n for m, n in made if n not in importlib.import_module(m.rstrip(".")).__all__] == []
    assert [n for _, n in made if not re.search(rf"`{n}\b", prose)] == []


@pytest.mark.parametrize(
    ("module", "page"), [("statestore_client", "errors.md"), ("raft_client", "raft.md")], ids=["store", "log"]
)
def test_every_error_is_made_from_the_source(module: str, page: str) -> None:
    """The reference has the docstring of each error, under the name by which it is imported."""
    made = {m + n for m, n in _MADE.findall((DOCS / "reference" / page).read_text())}
    names = importlib.import_module(f"{module}.errors").__all__
    assert {f"{module}.{name}" for name in names} <= made


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    """Every link to a file of the repository names a file that exists."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", prose)
    assert [t for t in targets if not (path.parent / t).exists()] == []
