"""Every block of code in README.md and docs/ does what the text around it says.

``document_runner`` explains how a block is run, how ``mqtt://127.0.0.1:1883`` in a text becomes the address of an
embedded server of the test, and which blocks need not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import click
import pytest
from document_runner import run_document

from statestore_client import ConnectionSettings
from statestore_client.cli.app import cli
from statestore_client.server import EmbeddedServer
from statestore_client.spark import JavaNotFoundError, find_java_home

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUNNER = Path(__file__).with_name("document_runner.py")

#: Documents that start a JVM. It must be one of their own: a process holds a single Spark session.
SPARK = DOCS / "how-to" / "spark.md"

DOCUMENTS = [ROOT / "README.md", *sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts and p != SPARK)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_runs(path: Path, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document's code runs from top to bottom and prints what the document shows."""
    monkeypatch.chdir(tmp_path)
    run_document(path, tmp_path, server.url)


@pytest.mark.spark
def test_every_spark_block_runs(server: EmbeddedServer, tmp_path: Path) -> None:
    """The Spark document's code runs from top to bottom and prints what the document shows."""
    pytest.importorskip("pyspark")
    pytest.importorskip("pyarrow")
    try:
        find_java_home()
    except JavaNotFoundError as error:
        (pytest.fail if os.environ.get("STATESTORE_REQUIRE_TOOLS") else pytest.skip)(str(error))
    arguments = [sys.executable, RUNNER, SPARK, tmp_path, server.url]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the runner itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```ruby\nputs 1\n```\n", "no rule says how to test"),
        ("```\nwhat is this\n```\n", "no rule says how to test"),
        ("```pycon\n>>> 1 + 1\n3\n```\n", "Expected"),
        ("```python\nprint(1)\n```\n```output\n2\n```\n", "expected"),
        ("```console\n$ echo one\ntwo\n```\n", "expected"),
        ("```bash\nfalse\ntrue\n```\n", "ended with code 1"),
        ("<!-- not run: too dangerous -->\n```bash\nrm -rf build\n```\n", "not on the list"),
        ("<!-- not run: hides a second command -->\n```bash\nmake test\nstatestore get x\n```\n", "not on the list"),
    ],
    ids=["language", "no-language", "session", "output", "console", "exit-code", "exempt", "second-command"],
)
def test_a_wrong_document_fails(text: str, complaint: str, tmp_path: Path) -> None:
    """A block that lies, or that nobody could test, fails the document."""
    document = tmp_path / "wrong.md"
    document.write_text(text)
    with pytest.raises(AssertionError, match=complaint):
        run_document(document, tmp_path, "mqtt://127.0.0.1:1883")


def test_a_failing_python_block_names_its_line(tmp_path: Path) -> None:
    """The traceback of a block points into the document."""
    document = tmp_path / "wrong.md"
    document.write_text("# Title\n\n```python\nx = 1\nx / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_document(document, tmp_path, "mqtt://127.0.0.1:1883")
    last = caught.traceback[-1]
    assert (Path(last.path), last.lineno + 1) == (document, 5)


# -- completeness ------------------------------------------------------------------------------------------------------


def test_every_setting_is_described() -> None:
    """The reference has a row for each connection setting and each environment variable."""
    text = (DOCS / "reference" / "settings.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert {a.name for a in attrs.fields(ConnectionSettings)} <= rows


def test_every_command_and_option_is_described() -> None:
    """The reference has a section for each command, and each of its options stands in it."""
    text = (DOCS / "reference" / "cli.md").read_text()
    sections = dict(re.findall(r"^## `statestore (\w+)`$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    shared = re.search(r"^## Options of every client command$(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert shared is not None
    assert set(sections) == set(cli.commands)
    for name, command in cli.commands.items():
        options = {o for p in command.params if isinstance(p, click.Option) for o in p.opts}
        missing = {o for o in options if f"`{o}" not in sections[name] and f"`{o}" not in shared[1]}
        assert not missing, f"statestore {name}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    """Every link to a file of the repository names a file that exists."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", prose)
    assert [t for t in targets if not (path.parent / t).exists()] == []
