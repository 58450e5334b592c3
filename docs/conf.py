"""Sphinx configuration. Warnings are errors: ``sphinx-build -W --keep-going -b html docs docs/_build/html``."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import statestore_client


def _version() -> str:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg", encoding="utf-8")
    return setup["metadata"]["version"]


project = "statestore-client"
author = "the statestore-client developers"
project_copyright = "2026, the statestore-client developers"
release = version = _version()

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"statestore-client {release}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

nitpicky = True
#: The standard library and PySpark are not ours to document; there is no network at build time to ask theirs.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(abc|argparse|asyncio|collections|contextlib|enum|logging|os|pathlib|pyarrow|pyspark|random|re|ssl"
        r"|threading|types|typing)\..*",
    ),
    (r"py:.*", r"(Any|Callable|Final|Literal|Self|Sequence|Iterable|Iterator|AsyncIterator|Mapping|TracebackType)"),
    (r"py:.*", r"(DataFrame|SparkSession|Column|Row|Accumulator|OSError|ValueError|TypeError|TimeoutError|RuntimeError)"),
]

# The class is called as its twin is; readers know it by the name under which the package has it.
statestore_client.AsyncStateStoreClient.__name__ = "AsyncStateStoreClient"


def _resolve_short_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Find ``:class:`ServerError``` wherever it is documented: docstrings name our classes as one imports them."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].rpartition("statestore_client.")[2].rsplit(".", 1)
    python = env.domains.python_domain
    for name in (node["reftarget"].rsplit(".", 1)[-1], ".".join(target)):
        found = [
            (full, entry)
            for full, entry in python.objects.items()
            if full.startswith("statestore_client") and (full == name or full.endswith(f".{name}"))
        ]
        if found:
            full, entry = min(found, key=lambda pair: len(pair[0]))
            return _reference(app, node, entry.docname, entry.node_id, full, content)
    return None


def _reference(
    app: Sphinx, node: pending_xref, docname: str, node_id: str, title: str, content: nodes.TextElement
) -> nodes.Element:
    from sphinx.util.nodes import make_refnode

    return make_refnode(app.builder, node["refdoc"], docname, node_id, [content], title)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("missing-reference", _resolve_short_name)
    return {"parallel_read_safe": True}
