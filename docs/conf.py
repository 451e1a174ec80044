"""Sphinx configuration; `make docs` builds the site and treats warnings as errors.

A page in `GENERATED` has its introduction in its file; the rest is generated from the code (`site/`).
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from docs.site import commands_page, http_page, python_page, settings_page

project = "rfa-server"
html_title = "rfa-server"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
# Long signatures have one argument per line.
python_maximum_signature_line_length = 100
GENERATED = {
    "reference/http": http_page.page,
    "reference/commands": commands_page.page,
    "reference/python": python_page.page,
    "reference/settings": settings_page.page,
}
LINK = re.compile(r"\[([^\]]+)\]\(([\w./-]+)\)")
# Elements that a browser fetches automatically.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*rel=\"stylesheet\"[^>]*href=\"http"
)


def add_generated(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the generated part of a page."""
    if name in GENERATED:
        source[0] += "\n" + GENERATED[name]()


def leave_folders_as_text(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace a link to a folder of the repository, which has no page, by its text."""
    here = Path(app.env.doc2path(name)).parent
    source[0] = LINK.sub(lambda link: link[1] if (here / link[2]).is_dir() else link[0], source[0])


def refuse_foreign_hosts(app: Sphinx, error: Exception | None) -> None:
    """Check that no page loads anything from another host.

    Raises:
        SphinxError: naming the first page that fetches a font, script or picture from elsewhere.
    """
    if error is None:
        for page in sorted(Path(app.outdir).rglob("*.html")):
            if FETCHED.search(page.read_text(encoding="utf-8")):
                raise SphinxError(f"{page.name} fetches something from another host")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_generated)
    app.connect("source-read", leave_folders_as_text)
    app.connect("build-finished", refuse_foreign_hosts)
