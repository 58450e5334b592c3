"""A Sphinx extension: the pages as Markdown, a list of them for language models, and what links to a page show.

Each page is also there with ``.md`` in place of ``.html``, as it was written, less what readers do not see: comments
and hidden lists of pages. Pages that are made from the source of the package are plain text there, as Sphinx writes it.
``llms.txt`` has one line for each page (https://llmstxt.org), ``llms-full.txt`` all.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.io import StringOutput
from sphinx.builders.text import TextBuilder
from sphinx.writers.text import TextWriter

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["setup"]

#: Pages with these are made from the source, at least in part.
_MADE = re.compile(r"^```\{(eval-rst|include|toctree)\}$(?!\n:(caption|hidden))", re.MULTILINE)
#: Of a page as it was written: what readers do not see, code, which is as it is, and where a link leads, if not to
#: another site or within the page.
_PARTS = re.compile(
    r"(?P<unseen><!--.*?-->\n*|^```\{toctree\}\n.*?^```\n*)"
    r"|^(?P<fence>```+).*?^(?P=fence)$|`[^`\n]+`"
    r"|(?<=\]\()(?P<link>(?![a-z]+:|#)[^)#\s]+)",
    re.MULTILINE | re.DOTALL,
)
_SUMMARY_CHARACTERS = 200


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", _describe)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _summary(doctree: nodes.document) -> str:
    """The first paragraph, on one line."""
    text = next((" ".join(p.astext().split()) for p in doctree.findall(nodes.paragraph)), "")
    return text if len(text) <= _SUMMARY_CHARACTERS else text[:_SUMMARY_CHARACTERS].rpartition(" ")[0] + " …"


def _describe(
    app: Sphinx, pagename: str, _template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Title, description and picture, for search engines and for links in a chat."""
    if doctree is None:
        return
    base = app.config.html_baseurl.rstrip("/")
    tags = {
        "og:type": "website",
        "og:site_name": app.config.project,
        "og:title": re.sub("<[^>]+>", "", context["title"]),
        "og:description": _summary(doctree),
        "twitter:card": "summary_large_image",
    }
    if base:
        tags |= {"og:url": f"{base}/{pagename}.html", "og:image": f"{base}/_static/card.png"}
    lines = [f'<meta property="{name}" content="{html.escape(text)}">' for name, text in tags.items()]
    lines.append(f'<meta name="description" content="{html.escape(_summary(doctree))}">')
    lines.append(f'<link rel="alternate" type="text/markdown" href="{Path(pagename).name}.md">')
    context["metatags"] = context.get("metatags", "") + "\n".join(lines)


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    lines = [f"# {app.config.project}\n", f"> {_summary(app.env.get_doctree('index'))}\n"]
    if app.config.release:
        lines.append(f"These pages are about version {app.config.release}.\n")
    full = []
    for name in _in_order(app):
        text = _plain(app, name)
        (out / f"{name}.md").parent.mkdir(exist_ok=True)
        (out / f"{name}.md").write_text(text, encoding="utf-8")
        full.append(text)
        lines.append(f"- [{app.env.titles[name].astext()}]({name}.md): {_summary(app.env.get_doctree(name))}")
    (out / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "llms-full.txt").write_text("\n\n".join(full), encoding="utf-8")


def _in_order(app: Sphinx) -> list[str]:
    """The pages as the sidebar has them, each once."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in found:
            found[name] = None
            for child in app.env.toctree_includes.get(name, ()):
                visit(child)

    visit(app.config.root_doc)
    return list(found)


def _plain(app: Sphinx, name: str) -> str:
    source = Path(app.env.doc2path(name)).read_text(encoding="utf-8")
    if not _MADE.search(source):
        return _PARTS.sub(lambda part: _as_seen(app, name, part), source)
    builder = TextBuilder(app, app.env)
    builder.init()
    writer = TextWriter(builder)
    writer.write(app.env.get_and_resolve_doctree(name, app.builder), StringOutput(encoding="unicode"))
    return str(writer.output)


def _as_seen(app: Sphinx, name: str, part: re.Match[str]) -> str:
    if part["unseen"] is not None:
        return ""
    return part[0] if part["link"] is None else _target(app, name, part["link"])


def _target(app: Sphinx, name: str, link: str) -> str:
    """Where the file is that a page has a link to: Sphinx has put pictures and other files elsewhere."""
    folder = PurePosixPath(name).parent
    file = posixpath.normpath(folder / link)
    for files, place in ((app.env.images, "_images"), (app.env.dlfiles, "_downloads")):
        placed = next((each for there, (_, each) in files.items() if str(there) == file), None)
        if placed is not None:
            return posixpath.relpath(f"{place}/{placed}", folder)
    return link
