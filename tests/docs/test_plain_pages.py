"""The site has each page as Markdown, and a list of them for language models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="comes with the extra docs")

EXTENSIONS = Path(__file__).parents[2] / "docs"

CONF = f"""
import sys
sys.path.insert(0, {str(EXTENSIONS)!r})
project = "pumps"
release = "1.2"
extensions = ["myst_parser", "sphinx.ext.autodoc", "plain_pages"]
html_baseurl = "https://pumps.example/"
"""
INDEX = """# Pumps

All about *pumps* & pipes.

```{toctree}
:hidden:

start
below/made
```
"""
START = "# Start a pump\n\nPress the button.\n"
MADE = """# Made from the source

```{eval-rst}
.. autofunction:: textwrap.dedent
```
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of three pages, one of them made from docstrings."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "below").mkdir()
    for name, text in {"conf.py": CONF, "index.md": INDEX, "start.md": START, "below/made.md": MADE}.items():
        (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(folder), str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_a_page_is_there_as_it_was_written(site: Path) -> None:
    """The Markdown beside a page is its source."""
    assert (site / "start.md").read_text() == START


def test_a_page_made_from_the_source_has_what_was_made(site: Path) -> None:
    """The Markdown beside a page of the reference has names and docstrings, not the directive."""
    text = (site / "below/made.md").read_text()
    assert "textwrap.dedent(text)" in text
    assert "Remove any common leading whitespace" in text
    assert "autofunction" not in text


def test_the_list_has_each_page_once_in_the_order_of_the_sidebar(site: Path) -> None:
    """``llms.txt`` begins with the name and what it is, then has a line for each page."""
    lines = (site / "llms.txt").read_text().splitlines()
    assert lines[0] == "# pumps"
    assert lines[2] == "> All about pumps & pipes."
    assert lines[4] == "These pages are about version 1.2."
    assert [line.partition("](")[2].partition(")")[0] for line in lines if line.startswith("- ")] == [
        "index.md",
        "start.md",
        "below/made.md",
    ]
    assert START in (site / "llms-full.txt").read_text()


def test_a_link_to_a_page_shows_what_it_is(site: Path) -> None:
    """A page names its title, its description and the picture, with a whole address."""
    page = (site / "index.html").read_text()
    assert '<meta property="og:title" content="Pumps">' in page
    assert '<meta property="og:description" content="All about pumps &amp; pipes.">' in page
    assert '<meta property="og:image" content="https://pumps.example/_static/card.png">' in page
