"""The site has each page as Markdown, and a list of them for language models."""

from __future__ import annotations

import re
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
PUMP = '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"></svg>'
INDEX = """# Pumps

All about *pumps* & pipes.

```{toctree}
:hidden:

start
below/made
below/written
```

Goodbye.
"""
START = "# Start a pump\n\nPress the button.\n"
WRITTEN = """# Written

See [the start](../start.md#a), [the rules](rules.yml), [elsewhere](https://pumps.example/a.yml):

<!-- not run: a pump is needed
[a link](rules.yml)
-->
```python
start()  # [a](rules.yml) <!-- shown -->
```

<!-- invisible-code-block: python
stop()
-->

![A pump](../pump.svg) and `<!-- this -->`.
"""
#: Both are in a folder that Sphinx names after what is in the file.
READ = r"""# Written

See \[the start\]\(../start.md#a\), \[the rules\]\(../_downloads/[0-9a-f]+/rules.yml\), \[elsewhere\]\(https://pumps.example/a.yml\):

```python
start\(\)  # \[a\]\(rules.yml\) <!-- shown -->
```

!\[A pump\]\(../_images/pump.svg\) and `<!-- this -->`.
"""
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
    for name, text in {
        "conf.py": CONF,
        "index.md": INDEX,
        "start.md": START,
        "below/made.md": MADE,
        "below/written.md": WRITTEN,
        "below/rules.yml": "a: 1",
        "pump.svg": PUMP,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(folder), str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_a_page_is_there_as_it_was_written(site: Path) -> None:
    """The Markdown beside a page is its source."""
    assert (site / "start.md").read_text() == START


def test_what_readers_do_not_see_is_left_out(site: Path) -> None:
    """Comments, code that is run and not shown, and hidden lists; links to files lead to where these are now."""
    assert re.fullmatch(READ, (site / "below/written.md").read_text())
    assert (site / "index.md").read_text() == "# Pumps\n\nAll about *pumps* & pipes.\n\nGoodbye.\n"


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
        "below/written.md",
    ]
    assert START in (site / "llms-full.txt").read_text()


def test_a_link_to_a_page_shows_what_it_is(site: Path) -> None:
    """A page names its title, its description and the picture, with a whole address."""
    page = (site / "index.html").read_text()
    assert '<meta property="og:title" content="Pumps">' in page
    assert '<meta property="og:description" content="All about pumps &amp; pipes.">' in page
    assert '<meta property="og:image" content="https://pumps.example/_static/card.png">' in page
