"""Build the documentation's site: gather its pages, make the reference, start Sphinx.

Pages are those of docs/, plugins/ and scripts/, as they are but for links, which lead to a page of
the site where there is one. docs/index.md arranges them: each of its sections is one of the
navigation. The reference is made from the code: commands from typer's app, settings from pydantic's
models, the API from docstrings. Warnings are errors, and nothing is fetched.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"(^ *```\w*\n.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
HOME = "index.md"
REFERENCE = "## Reference\n\n"
MADE = ("- [Commands](reference/commands.md) with their options\n"
        "- [Settings](reference/settings.md)\n- [API](reference/api.md)\n")
KINDS = {"Classes": "autoclass", "Functions": "autofunction"}


def main() -> int:
    from sphinx.cmd.build import main as sphinx_main

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/docs",
                        help="directory to write: pages/ and html/")
    out = parser.parse_args().out.resolve()
    pages = out / "pages"
    for made in (pages, out / "html"):
        shutil.rmtree(made, ignore_errors=True)
    pages.mkdir(parents=True)
    gather(pages)
    write_reference(pages)
    # in this process, which has imported torch and DGL
    status: int = sphinx_main(["--fail-on-warning", "--keep-going", "--quiet", "-c",
                               str(ROOT / "docs"), str(pages), str(out / "html")])
    if not status:
        print(f"the site is in {out / 'html/index.html'}")
    return status


# Pages that people write


def site_pages() -> dict[Path, str]:
    """File of the repository → page of the site."""
    found = {ROOT / "README.md": HOME, ROOT / "CHANGELOG.md": "changes.md",
             ROOT / "CONTRIBUTING.md": "contributing.md"}
    for file in sorted((ROOT / "docs").rglob("*.md")):
        found[file] = str(file.relative_to(ROOT / "docs"))
    for file in sorted((ROOT / "docs").rglob("*.ipynb")):
        found[file] = str(file.relative_to(ROOT / "docs").with_suffix(".md"))
    for file in sorted([*ROOT.glob("plugins/*/README.md"), *ROOT.glob("scripts/*/README.md")]):
        found[file] = f"{file.parent.relative_to(ROOT)}.md"
    return found


def gather(pages: Path) -> None:
    """Copy all pages and drawings, links and navigation adapted."""
    known = site_pages()
    for file, name in known.items():
        if file == ROOT / "README.md":
            continue  # docs/index.md is the first page
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".ipynb":
            text = notebook_page(json.loads(text), file.name)
            shutil.copy(file, new_file(pages / file.relative_to(ROOT / "docs")))
        text = with_links(text, file, name, known)
        if name == HOME:
            text = text.replace(REFERENCE, REFERENCE + MADE)
            text += navigation(text)
        elif file.name == "README.md" and (beside := sorted(
                str(page.relative_to(file.parent).with_suffix("")) for page in
                (*file.parent.glob("*.md"), *file.parent.glob("*/README.md")) if page != file)):
            text += "\n" + contents("", beside) + "\n"
        new_file(pages / name).write_text(text, encoding="utf-8")
    for drawing in sorted((ROOT / "docs").rglob("*.svg")):
        shutil.copy(drawing, new_file(pages / drawing.relative_to(ROOT / "docs")))


def new_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def with_links(text: str, file: Path, name: str, known: dict[Path, str]) -> str:
    """The text of `file` for the page `name`; a link to what is no page becomes its path."""
    def adapted(match: re.Match[str]) -> str:
        image, label, link = match.groups()
        path, _, fragment = link.partition("#")
        if image or "://" in link or not path:
            return match[0]
        target = (file.parent / path).resolve()
        if (target / "README.md").exists():
            target /= "README.md"
        if target.suffix in {".ipynb", ".svg"} and file.suffix == ".ipynb":
            return match[0]  # the file itself, beside the page
        if target not in known:
            where = f"`{target.relative_to(ROOT)}`"
            return where if label.strip("`") == str(target.relative_to(ROOT)) else \
                f"{label} ({where})"
        to = os.path.relpath(known[target], Path(name).parent)
        return f"[{label}]({to}{'#' * bool(fragment)}{fragment})"

    return "".join(part if at % 2 else LINK.sub(adapted, part)
                   for at, part in enumerate(FENCE.split(text)))


def navigation(home: str) -> str:
    """A hidden table of contents for each section of the first page that lists pages."""
    parts = re.split(r"^## (.+)$", home, flags=re.MULTILINE)[1:]
    trees = []
    for title, body in zip(parts[::2], parts[1::2]):
        if listed := re.findall(r"\]\(([^)#]+)\.md\)", body):
            trees.append(contents(title, list(dict.fromkeys(listed))))
    return "\n\n" + "\n\n".join(trees) + "\n"


def contents(caption: str, pages: list[str]) -> str:
    """A hidden table of contents."""
    return "\n".join([":::{toctree}", ":hidden:", f":caption: {caption}" if caption else "", "",
                      *pages, ":::"]).replace("\n\n\n", "\n\n")


def notebook_page(notebook: dict[str, Any], file: str) -> str:
    """A notebook as Markdown: its texts and code, and a link to itself."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join([*parts, f"The notebook: [{file}]({file})."]) + "\n"


# Pages that are made


def write_reference(pages: Path) -> None:
    from dgl_heta.tools import PUBLIC

    folder = pages / "reference"
    new_file(folder / "commands.md").write_text(commands_page(), encoding="utf-8")
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8")
    described: dict[int, str] = {}
    for module in PUBLIC:
        (folder / f"{module}.rst").write_text(module_page(module, described), encoding="utf-8")
    (folder / "api.md").write_text("\n".join([
        "# API", "", "Names that plugins and programs may use. Others may change at any time.", "",
        ":::{toctree}", ":maxdepth: 1", "", *PUBLIC, ":::", ""]), encoding="utf-8")


def cell(text: object) -> str:
    """A text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(*rows: tuple[object, ...]) -> list[str]:
    head, *body = rows
    return [f"| {' | '.join(map(str, head))} |", "|---" * len(head) + "|",
            *(f"| {' | '.join(map(cell, row))} |" for row in body), ""]


def commands_page() -> str:
    """All commands with their arguments and options, as typer has them."""
    import typer

    from dgl_heta.cli import app

    root: Any = typer.main.get_command(app)
    lines = ["# Commands", "", f"{root.help} Each has `--help`. Errors are one line; the exit "
             "status is 2 for wrong input, 1 for other failures. Plugins bring further commands.",
             ""]
    for name, command in root.commands.items():
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f"## {name}", "", inspect.cleandoc(command.help or ""), "",
                  "```text", f"dgl-heta {name} {usage}", "```", ""]
        lines += table(("argument or option", "value", "meaning"), *(
            parameter(option, context) for option in command.params))
        if command.epilog:
            label, _, examples = command.epilog.partition(": ")
            lines += [f"{label}:", "", "```text", *re.split(r"\.? Or: ", examples), "```", ""]
    return "\n".join(lines)


def parameter(option: Any, context: Any) -> tuple[str, str, str]:
    """Names, value and meaning of an argument or an option, as `--help` has them."""
    written, meaning = option.get_help_record(context) or ("", option.help or "")
    *names, last = written.split(", ") if written.startswith("-") else [written]
    last, _, value = last.partition(" ")
    names = [f"`{name}`" for name in (*names, last)]
    value = value.strip("<>")
    return ", ".join(names), f"`{value}`" if value not in {"", "bool"} else "", meaning


def settings_page() -> str:
    """Every setting of every section, as pydantic has them."""
    from dgl_heta.settings import ENV_PREFIX, Settings

    lines = ["# Settings", "",
             "Defaults, then a TOML file (`-c heta.toml`), then the environment "
             f"(`{ENV_PREFIX}TRAIN__LR=0.003`), then `--set train.lr=0.003`. `dgl-heta settings` "
             "lists the values in effect, with the sections that plugins bring.", ""]
    for section, field in Settings.model_fields.items():
        model: Any = field.annotation
        if not hasattr(model, "model_fields"):
            continue
        lines += [f"## {section}", "", inspect.cleandoc(model.__doc__ or ""), ""]
        lines += table(("setting", "type", "default", "meaning"), *(
            (f"`{section}.{key}`", f"`{type_of(entry)}`", f"`{json_of(entry)}`",
             entry.description or "") for key, entry in model.model_fields.items()))
    return "\n".join(lines)


def type_of(entry: Any) -> str:
    """`str | None`, or the values that there are."""
    text = entry.annotation.__name__ if isinstance(entry.annotation, type) and not getattr(
        entry.annotation, "__args__", None) else str(entry.annotation)
    text = re.sub(r"Optional\[(.*)\]", r"\1 | None", text.replace("typing.", ""))
    return re.sub(r"Literal\[(.*?)\]", lambda values: values[1].replace("'", '"').replace(
        ", ", " | "), text)


def json_of(entry: Any) -> str:
    value = entry.get_default(call_default_factory=True)
    return json.dumps(value, default=str)


def module_page(module: str, described: dict[int, str]) -> str:
    """The public names of a module, by kind, for autodoc; what is described before is named."""
    there = importlib.import_module(module)
    kinds: dict[str, list[str]] = {kind: [] for kind in (*KINDS, "Data")}
    also = []
    for name in sorted(public_names(there), key=str.lower):
        thing = getattr(there, name)
        if not (inspect.isclass(thing) or inspect.isroutine(thing)):
            kinds["Data"] += data(there, name, thing)
        elif id(thing) in described:
            also.append(f":py:obj:`{described[id(thing)]}`")
        else:
            kind = "Classes" if inspect.isclass(thing) else "Functions"
            kinds[kind] += [f".. {KINDS[kind]}:: {module}.{name}", ""]
            described[id(thing)] = f"{module}.{name}"
    lines = [module, "=" * len(module), "", f".. automodule:: {module}", "   :no-members:", ""]
    for kind, entries in kinds.items():
        lines += [kind, "-" * len(kind), "", *entries] if entries else []
    if also:
        lines += ["Also here", "-" * 9, "", ", ".join(also), ""]
    return "\n".join(lines)


def data(module: Any, name: str, value: Any) -> list[str]:
    """A public value: its type, itself where that is short, and what its module says of it."""
    from sphinx.pycode import ModuleAnalyzer

    from dgl_heta.system.lazy_names import homes_of

    lazy = Path(module.__file__).with_suffix(".pyi").exists()
    home = homes_of(module.__file__).get(name, module.__name__) if lazy else module.__name__
    said = ModuleAnalyzer.for_module(home)
    said.analyze()
    lines = [f".. py:data:: {module.__name__}.{name}"]
    if type(value).__module__ == "builtins":
        lines += [f"   :type: {type(value).__name__}"]
        lines += [f"   :value: {value!r}"] if len(repr(value)) < 200 else []
    return [*lines, "", *(f"   {line}" for line in said.attr_docs.get(("", name), [])), ""]


def public_names(module: Any) -> Iterator[str]:
    return (name for name in module.__all__ if not name.startswith("__"))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
