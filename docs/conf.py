"""Sphinx configuration. Warnings are errors: ``sphinx-build -W --keep-going -b html docs docs/_build/html``."""

from __future__ import annotations

import os
import re
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import attrs
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import raft_client
import statestore_client


def _version() -> str:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg", encoding="utf-8")
    return setup["metadata"]["version"]


project = "statestore-client"
author = "the statestore-client developers"
project_copyright = "2026, the statestore-client developers"
release = version = _version()

sys.path.insert(0, str(Path(__file__).parent))

# viewcode: the source is shown here, as long as no public address has it.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton", "plain_pages"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"statestore-client {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
#: Where the site is, for the pictures of links to it: they need a whole address.
html_baseurl = os.environ.get("DOCS_URL", "")
_COLOURED = ("color-brand-primary", "color-brand-content", "color-api-name", "color-api-pre-name")
html_theme_options = {
    "light_css_variables": dict.fromkeys(_COLOURED, "#0f766e"),
    "dark_css_variables": dict.fromkeys(_COLOURED, "#5eead4"),
}

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_remove_prompts = True
copybutton_line_continuation_character = "\\"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

nitpicky = True
#: Both clients have a Lock, a Lease and a Watch; an annotation that names one leads to either.
suppress_warnings = ["ref.python"]
#: The standard library and PySpark are not ours to document; there is no network at build time to ask theirs.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(abc|argparse|asyncio|collections|contextlib|enum|logging|os|pathlib|pyarrow|pyspark|random|re|ssl"
        r"|socket|threading|types|typing)\..*",
    ),
    (
        r"py:.*",
        r"(AbstractContextManager|Authorizer|ErrorClasses|Side|Transport|Any|Callable|Final|Literal|Self|Sequence|Iterable|Iterator|AsyncIterator|Mapping|TracebackType)",
    ),
    (
        r"py:.*",
        r"(DataFrame|SparkSession|StreamingQueryProgress|Column|Row|Accumulator|OSError|ValueError|TypeError|TimeoutError|RuntimeError)",
    ),
    # paho's client, and names for functions that the API page describes in a table.
    (r"py:.*", r"(PahoClient|StateListener|Clock|TokenVerifier)"),
    # Types of keyword options, which the pages describe in tables, and of the mark for "the setting's value".
    (r"py:class", r"(.*\.)?((Batch|Client|Connection|Partition|Pipeline|Row|Shared)Options|DefaultTimeout)"),
    # What a lease has as its ``ended``: an event, of threads or of tasks.
    (r"py:class", r"statestore_client\.(aio|sync)\.primitives\.Flag"),
    # What a stream of a site begins with, and what comes then.
    (r"py:class", r"statestore_client\.kvstore\.(aio|sync)\.client\.[ST]"),
    # What Lease.ended is: an event of threading or asyncio.
    (r"py:class", r"statestore_client\.(aio|sync)\.primitives\.Flag"),
    # What client.kv is made with, by the client alone, and how it asks for a page.
    (
        r"py:class",
        r"raft_client\.((aio|sync)\.engine\.Engine|core\.key_value_calls\..*|wire\.key_value_messages\.Page)",
    ),
    # What a lease is made with, by client.kv alone; what peers and clients write and read of leases.
    (r"py:class", r"raft_client\.((aio|sync)\.lease\.LeaseCalls|wire\.leases\..*)"),
    # What a mirror is made with, by client.kv alone; and what a value of another type may be.
    (
        r"py:class",
        r"raft_client\.(core\.mirrors\.(ChangeQueue|Mirror)|(aio|sync)\.primitives\.(ReadySignal|Whole)|(aio|sync)\.mirror\.D)",
    ),
    (r"py:class", r"Awaitable|ItemsView|KeysView|ValuesView"),
    # A tuple of Peer, and pathlib.Path.
    (r"py:class", r"Peers|Path"),
    # What only the server's own rooms handle.
    (
        r"py:class",
        r"(statestore_client\.server\.(access|runtime\.security\.files)\..*|ClientPermissions)",
    ),
]

# The class is called as its twin is; readers know it by the name under which the package has it.
statestore_client.AsyncStateStoreClient.__name__ = "AsyncStateStoreClient"
raft_client.AsyncRaftClient.__name__ = "AsyncRaftClient"
raft_client.LogInfo.__name__ = raft_client.LogInfo.__qualname__ = "LogInfo"  # on the wire it is a LogInfoReply

_PACKAGES = ("statestore_client", "raft_client")


def _resolve_short_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Find ``:class:`ServerError``` wherever it is documented: docstrings name our classes as one imports them."""
    if node.get("refdomain") != "py":
        return None
    # Both packages have a Watch, a SettingsError and so on: the page that names one documents the package it means.
    package = "raft_client" if "raft" in node["refdoc"] else "statestore_client"
    named = next((p for p in _PACKAGES if node["reftarget"].startswith(f"{p}.")), package)
    target = node["reftarget"].rpartition(f"{named}.")[2].rsplit(".", 1)
    python = env.domains.python_domain
    for name in (node["reftarget"].rsplit(".", 1)[-1], ".".join(target)):
        found = [
            (full, entry)
            for full, entry in python.objects.items()
            if full.startswith(f"{named}.") and (full == name or full.endswith(f".{name}"))
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


#: Made by the clients; how does not matter to others.
_NOT_FOR_CALLERS = re.compile(
    r"statestore_client\.(Async)?(Election|GuardedStore|LeaseStore|Lease|Lock|LockObservation|Watch)"
    r"|raft_client\.(Async)?(Entries|Subscriber|Watch)"
)

#: How the constructors that attrs writes spell their defaults.
_ATTRS_DEFAULT = re.compile(r"attr_dict\['(\w+)'\]\.default")


def _shape_signature(*event: Any) -> tuple[str | None, str | None]:
    """``autodoc-process-signature``: a signature as a reader would write it."""
    _app, what, name, documented, _options, signature, returns = event
    if what == "class" and _NOT_FOR_CALLERS.fullmatch(name):
        return "", None
    if signature is not None:
        # "The setting's value" is said in the text; the name of the marker is not for readers.
        signature = signature.replace("= _DEFAULT", "= ...").replace("= _KEY_VALUE", "= KeyValueCodec()")
        signature = _ATTRS_DEFAULT.sub(lambda m: repr(attrs.fields_dict(documented)[m[1]].default), signature)
    return signature, returns


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-signature", _shape_signature)
    app.connect("missing-reference", _resolve_short_name)
    return {"parallel_read_safe": True}
