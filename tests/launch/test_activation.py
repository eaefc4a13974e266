"""With settings a script runs under `dgl-heta run`, without them as it is."""

from __future__ import annotations

from typing import Any

import pytest

from dgl_heta.errors import InputError
from dgl_heta.launch.activation import activate


@pytest.mark.parametrize(("command", "expected"), [
    ("python t.py -c x", "python -m dgl_heta run -c h.toml --set a.b=1 t.py -c x"),
    ("/opt/bin/python3.11 -u -W ignore t.py",
     "/opt/bin/python3.11 -u -W ignore -m dgl_heta run -c h.toml --set a.b=1 t.py"),
    ("python3 -uXdev t.py", "python3 -uXdev -m dgl_heta run -c h.toml --set a.b=1 t.py"),
    ("python -X dev -Wcommon t.py",
     "python -X dev -Wcommon -m dgl_heta run -c h.toml --set a.b=1 t.py"),
])
def test_settings_run_the_script_under_dgl_heta(command, expected):
    assert activate(command.split(), "h.toml", ["a.b=1"]) == expected.split()


@pytest.mark.parametrize("command", [
    "torchrun t.py", "./t.py", "python -m package", "python -c pass", "python -uc pass", "python",
    "python -", "python -u", "pythonic t.py"])
def test_settings_need_a_python_script(command):
    with pytest.raises(InputError, match=r"must be 'python SCRIPT.*dgl_heta\.enable\(\)"):
        activate(command.split(), "h.toml", [])


@pytest.mark.parametrize("way", ["option", "set", "variable", "none"])
def test_without_settings_the_command_is_plain(place, monkeypatch, way):
    config = place.script("[train]\nlr = 0.1\n", "heta.toml")
    options: list[Any] = {"option": ["-c", "heta.toml"], "set": ["--set", "train.lr=0.1"]}.get(
        way, [])
    if way == "variable":
        monkeypatch.setenv("DGL_HETA_CONFIG", "heta.toml")
    shown = place.run(*place.where("direct", 1), *options, "--dry-run", "--json", "--", "python",
                      "t.py", "-x").json
    given = {"set": ["--set", "train.lr=0.1"], "none": []}.get(way, ["-c", str(config)])
    expected = ["-m", *(["dgl_heta", "run", *given] if given else ["dgl_heta.launch.plain"])]
    assert {tuple(p["command"]) for p in shown} == {("python", *expected, "t.py", "-x")}


def test_a_bad_setting_is_found_before_anything_starts(place):
    place.script("[train]\nlrr = 0.1\n", "heta.toml")
    result = place.run(*place.where("ssh"), "-c", "heta.toml", "--", "python", "t.py")
    assert result.status == 2
    assert "train.lrr" in result.error
    assert not (place.directory / "ssh.log").exists()
