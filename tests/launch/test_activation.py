"""With settings a script runs under `dgl-heta run`, without them as it is."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dgl_heta.errors import InputError
from dgl_heta.launch.activation import Command, activate


@pytest.mark.parametrize(("command", "expected"), [
    ("python t.py -c x", "python -m dgl_heta run -c h.toml --set a.b=1 t.py -c x"),
    ("/opt/bin/python3.11 -u -W ignore t.py",
     "/opt/bin/python3.11 -u -W ignore -m dgl_heta run -c h.toml --set a.b=1 t.py"),
    ("python3 -uXdev t.py", "python3 -uXdev -m dgl_heta run -c h.toml --set a.b=1 t.py"),
    ("python -X dev -Wcommon t.py",
     "python -X dev -Wcommon -m dgl_heta run -c h.toml --set a.b=1 t.py"),
    ("python --check-hash-based-pycs never t.py -m x",
     "python --check-hash-based-pycs never -m dgl_heta run -c h.toml --set a.b=1 t.py -m x"),
    ("python -m package.module -c x",
     "python -m dgl_heta run -c h.toml --set a.b=1 -m package.module -c x"),
    ("python -W ignore -um package -m y",
     "python -W ignore -u -m dgl_heta run -c h.toml --set a.b=1 -m package -m y"),
    ("python3 -Bmpackage.module", "python3 -B -m dgl_heta run -c h.toml --set a.b=1 -m "
     "package.module"),
])
def test_settings_run_the_script_under_dgl_heta(command, expected):
    assert activate(command.split(), "h.toml", ["a.b=1"]) == expected.split()


@pytest.mark.parametrize("command", [
    "torchrun t.py", "./t.py", "python -m", "python -c pass", "python -uc pass", "python",
    "python -", "python -u", "pythonic t.py"])
def test_settings_need_a_python_script_or_module(command):
    with pytest.raises(InputError, match=r"must be 'python SCRIPT …' or 'python -m MODULE.*"
                                         r"dgl_heta\.enable\(\)"):
        activate(command.split(), "h.toml", [])


@pytest.mark.parametrize("command", [
    "python t.py -", "python -c pass", "python -um t -", "python -V", "python -W once --version",
    "bash -c true", "bash -x t.sh -s", "sh -euc true", "bash --version", "./t", "env python -"])
def test_a_command_that_names_its_program_reads_none(command):
    assert not Command(tuple(command.split())).reads_input


def words_of(shown) -> set[tuple[str, ...]]:
    """The commands of processes, with the settings' file by its name: each host has its own."""
    return {tuple("heta.toml" if word.endswith("/heta.toml") else word for word in p["command"])
            for p in shown}


@pytest.mark.parametrize("way", ["option", "set", "variable", "setting", "none"])
def test_without_settings_the_command_is_plain(place, monkeypatch, way):
    place.script("[train]\nlr = 0.1\n", "heta.toml")
    place.script("", "t.py")
    options: list[Any] = {"option": ["-c", "heta.toml"], "set": ["--set", "train.lr=0.1"]}.get(
        way, [])
    if way == "variable":
        monkeypatch.setenv("DGL_HETA_CONFIG", "heta.toml")
    if way == "setting":
        monkeypatch.setenv("DGL_HETA_TRAIN__LR", "0.1")
    shown = place.run(*place.where("direct", 1), *options, "--dry-run", "--json", "--", "python",
                      "t.py", "-x").json
    given = {"set": ["--set", "train.lr=0.1"], "setting": []}.get(way, ["-c", "heta.toml"])
    expected = ["dgl_heta.launch.fail_fast"] if way == "none" else ["dgl_heta", "run", *given]
    assert words_of(shown) == {(sys.executable, "-m", *expected, "t.py", "-x")}


def test_a_module_runs_under_dgl_heta_or_plainly(place):
    place.script("[train]\nlr = 0.1\n", "heta.toml")
    for options, runner in ((["-c", "heta.toml"], ["dgl_heta", "run", "-c", "heta.toml"]),
                            ([], ["dgl_heta.launch.fail_fast"])):
        shown = place.run(*place.where("direct", 1), *options, "--dry-run", "--json", "--",
                          "python", "-m", "package.module", "-x").json
        assert words_of(shown) == {(sys.executable, "-m", *runner, "-m", "package.module", "-x")}


@pytest.mark.parametrize(("kind", "options", "word", "expected"), [
    ("emulated", [], "python3", sys.executable), ("emulated", [], "/usr/bin/env", "/usr/bin/env"),
    ("emulated", ["--env", "PATH=/usr/bin"], "python3", "python3"),
    ("emulated", [], sys.executable, sys.executable), ("nowhere", [], "python", "python")])
def test_python_is_the_one_that_runs_dgl_heta_unless_a_path_is_given(place, kind, options, word,
                                                                     expected):
    shown = place.run(*place.where(kind), *options, "--dry-run", "--json", "--", word,
                      place.script("")).json
    assert {p["command"][0] for p in shown} == {expected}


def test_a_bad_setting_is_found_before_anything_starts(place):
    place.script("[train]\nlrr = 0.1\n", "heta.toml")
    result = place.run(*place.where("nowhere"), "-c", "heta.toml", "--", "python", "t.py")
    assert result.status == 2
    assert "train.lrr" in result.error
