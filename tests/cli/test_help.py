"""Every command explains itself."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

from dgl_heta import cli

COMMANDS = sorted(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]




@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_the_command_with_an_example(heta, command):
    result = heta(command, "--help")
    assert (result.status, result.err) == (0, "")
    assert f"Example: dgl-heta {command}" in result.out
    for option, help_text in re.findall(r"^│ [* ]*(--\S+) .*<.+> +(.*)│", result.out, re.M):
        assert re.search(r"[a-z]{3}", help_text), f"{option} is not explained"


@pytest.mark.parametrize("args", [(), ("--help",)])
def test_help_without_a_command_lists_all(heta, args):
    result = heta(*args)
    assert (result.status, result.err) == (0, "")
    assert all(re.search(rf"^│ {name} +[A-Z]", result.out, re.M) for name in COMMANDS)


def test_version(heta):
    assert heta("--version").out == f"dgl-heta {cli.__version__}\n"


def test_help_waits_for_nothing_that_it_does_not_need():
    heavy = ("torch", "numpy", "numba", "networkx", "pydantic", "matplotlib", "jinja2", "dgl")
    for code in ("import dgl_heta", "import dgl_heta.cli"):
        run = subprocess.run(
            [sys.executable, "-c", f"import sys; {code}; print([m for m in {heavy} "
             "if m in sys.modules])"], capture_output=True, text=True, check=True)
        assert run.stdout == "[]\n"
