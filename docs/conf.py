"""What Sphinx is told; scripts/build_docs.py gathers the pages and starts it."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

from dgl_heta import __version__

project = "dgl-heta"
author = "the authors of dgl-heta"
release = version = __version__
html_title = f"dgl-heta {__version__}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # links to headings, by the names that they have elsewhere
default_role = "code"  # docstrings write `name`
smartquotes = False  # `--option` and "names" in texts of the command line are meant as they are

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False


def setup(app: Any) -> None:
    app.connect("doctree-read", with_dashes)
    app.connect("autodoc-skip-member", without_internals)
    app.connect("autodoc-process-signature", without_arguments_of_protocols)
    app.connect("autodoc-process-docstring", meanings_below_names, priority=100)


def with_dashes(app: Any, document: Any) -> None:
    """Between a parameter and its meaning; Sphinx leaves it to smartquotes, which change code."""
    for node in list(document.findall(nodes.Text)):
        if node.astext() == " -- ":
            node.parent.replace(node, nodes.Text(" – "))


def without_internals(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any
                      ) -> bool | None:
    """pydantic's members of a class of settings have no use to a reader."""
    return True if name in {"model_config", "model_post_init"} else None


def without_arguments_of_protocols(app: Any, what: str, name: str, obj: Any, options: Any,
                                   signature: str | None, returns: str | None
                                   ) -> tuple[str, str | None] | None:
    """What derives from a protocol has arguments of its own; `(*args, **kwargs)` is Python's."""
    return ("", returns) if signature == "(*args, **kwargs)" and what == "class" else None


def meanings_below_names(app: Any, what: str, name: str, obj: Any, options: Any,
                         lines: list[str]) -> None:
    """`name : meaning` in a section of parameters, for napoleon, which takes the rest for a type.

    Before it, so that it finds each name on a line and its meaning below. Types are those of the
    signature.
    """
    done: list[str] = []
    inside, names = False, ""
    for at, line in enumerate(lines):
        below = lines[at + 1] if at + 1 < len(lines) else ""
        if re.fullmatch(r"-{3,}", below):
            inside = line in {"Parameters", "Other Parameters", "Attributes", "Raises"}
        found = re.fullmatch(r"([\w*., ]+) : (.+)", names + line) if inside else None
        if found:
            done += [found[1], f"    {found[2]}"]
            names = ""
        elif inside and re.fullmatch(r"[\w*., ]+,", line):
            names = f"{line} "
        else:
            done.append(line)
    lines[:] = done
