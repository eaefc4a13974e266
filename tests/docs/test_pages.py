"""What the documentation says exists: links, commands, options, settings, imports."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from dgl_heta.cli import app
from dgl_heta.settings import keys, parse_toml
from tests.docs.pages import PAGES, ROOT, anchors, blocks, commands, links, prose
from tests.support.needs import lacking

CLI = typer.main.get_command(app)
WIDTH = 110
OF_PLUGINS = {"NAME", "catgnn"}  # commands that dgl-heta itself does not have


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, fragment = link.partition("#")
        if "://" in name:
            continue
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: no such file"
        if fragment:
            assert fragment in anchors(target), f"{link}: no such heading: {anchors(target)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_short_but_for_tables_and_addresses(page: Path) -> None:
    long = [line for line in page.read_text(encoding="utf-8").splitlines()
            if len(line) > WIDTH and not line.startswith("|") and "://" not in line]
    assert not long


def written() -> Iterator[tuple[str, list[str]]]:
    """Every command of the pages, in console blocks and in the text, with where it stands."""
    for code in blocks("console", "bash"):
        text = code.text if code.language == "console" else re.sub(r"^(?=\S)", "$ ", code.text,
                                                                   flags=re.MULTILINE)
        yield from ((str(code), words) for words in commands(text))
    for page in PAGES:
        for span in re.findall(r"`((?:dgl-heta|python) [^`]+)`", prose(page)):
            yield f"{page.relative_to(ROOT)}: {span}", span.split()


def option_names(words: list[str]) -> list[str]:
    """`-c` and `--set`; what follows ` -- ` belongs to another command."""
    own = words[:words.index("--")] if "--" in words else words
    return [match[0] for word in own if (match := re.match(r"\[?(--?[a-z][\w-]*)", word))
            and (match := re.match(r"--?[a-z][\w-]*", word.lstrip("[")))]


def test_commands_and_options_of_dgl_heta_are_those_it_has() -> None:
    subcommands: dict[str, typer.core.TyperCommand] = CLI.commands  # type: ignore[attr-defined]
    count = 0
    for where, words in written():
        text = " ".join(words).replace("-m dgl_heta ", "dgl-heta ").replace("python dgl-heta",
                                                                            "dgl-heta")
        if "dgl-heta " not in text:
            continue
        name, *rest = text[text.index("dgl-heta ") + len("dgl-heta "):].split()
        if name.startswith("-") or name in OF_PLUGINS:
            continue
        assert name in subcommands, f"{where}: dgl-heta has no command {name}"
        if name == "run":  # what follows the script is the script's
            rest = rest[:next((i for i, word in enumerate(rest) if word.endswith(".py")), None)]
        options = {option for parameter in subcommands[name].params
                   for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
        unknown = set(option_names(rest)) - options
        assert not unknown, f"{where}: dgl-heta {name} has no {', '.join(sorted(unknown))}"
        count += 1
    assert count > 30  # they were seen


def test_scripts_and_their_options_are_those_in_the_tree() -> None:
    """Options are searched for as words of the script and of what scripts beside it share."""
    count = 0
    for where, words in written():
        script = next((word for word in words if word.startswith(("scripts/", "./scripts/"))), None)
        if script is None:
            continue
        file = ROOT / script
        assert file.is_file(), f"{where}: no such script"
        count += 1
        if file.suffix == ".py" and words[0] == "python":
            text = file.read_text(encoding="utf-8")
            beside = [file.with_name(f"{name}.py") for name in
                      ("common", *re.findall(r"^from (\w+) import", text, re.MULTILINE))]
            text += "".join(each.read_text(encoding="utf-8") for each in beside if each.exists())
            for option in option_names(words):
                assert f'"{option}"' in text, f"{where}: {script} has no {option}"
    assert count > 10


def test_settings_are_those_there_are() -> None:
    there = set(keys())
    for where, words in written():
        for word, value in pairwise(words):
            key = value.split("=")[0]
            if word == "--set" and "." in key and not key.startswith("plugins."):
                assert key in there, f"{where}: no setting {key}"
    for code in blocks("toml"):
        for section, values in parse_toml(code.text).items():
            if isinstance(values, dict) and section in {key.split(".")[0] for key in there}:
                unknown = {f"{section}.{key}" for key in values} - there
                assert not unknown, f"{code}: no settings {unknown}"


@pytest.mark.parametrize("code", blocks("python"), ids=str)
def test_python_parses_and_its_imports_exist(code) -> None:
    if "dgl_heta.graphbolt" in code.text and (reason := lacking("dgl")):
        pytest.skip(reason)
    for node in ast.walk(ast.parse(code.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dgl_heta"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
