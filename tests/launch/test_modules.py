"""`python -m package.module`: under `dgl-heta run`, and as `launch` starts it without settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.waiting import PATIENCE

SHOW = """
import json, os, sys
print(json.dumps({"argv": sys.argv, "first": os.path.realpath(sys.path[0]), "name": __name__,
                  "package": __package__, "spec": __spec__.name,
                  "main": sys.modules["__main__"].__dict__ is globals(),
                  "enabled": bool(sys.modules.get("dgl_heta.distdgl.patches"))}))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """`package.module` prints what it sees, and the package is one that can be run."""
    for name in ("package", "package/sub"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "package/module.py").write_text(SHOW)
    (tmp_path / "package/__main__.py").write_text(SHOW)
    (tmp_path / "package/fails.py").write_text("import sys; sys.exit('as it must')")
    (tmp_path / "package/broken").mkdir()
    (tmp_path / "package/broken/__init__.py").write_text("import nothing_of_the_kind")
    (tmp_path / "package/broken/module.py").write_text("")
    (tmp_path / "heta.toml").write_text("")
    return tmp_path


def python(directory: Path, *words: str, interpreter: str = sys.executable
           ) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parents[2]
    return subprocess.run(
        [interpreter, *words], cwd=directory, capture_output=True, text=True, check=False,
        timeout=PATIENCE, env={**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(here), os.environ.get("PYTHONPATH", "")])})


@pytest.mark.parametrize("name", ["package.module", "package"])
def test_a_module_sees_what_python_itself_would_show_it(package, name):
    words = ["-m", name, "-c", "x", "--set", "y", "-m", "z"]
    plain = python(package, *words)
    assert plain.returncode == 0, plain.stderr
    wanted = json.loads(plain.stdout)
    for runner in (["-m", "dgl_heta.launch.fail_fast"],
                   ["-m", "dgl_heta", "run", "-c", "heta.toml"]):
        done = python(package, *runner, *words)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found.pop("enabled") == ("run" in runner)
        assert found == {key: value for key, value in wanted.items() if key != "enabled"}


@pytest.mark.parametrize(("name", "said"), [
    ("packag.module", "there is no module packag.module"),
    ("package.modul", "there is no module package.modul"),
    ("package.module.deeper", "there is no module package.module.deeper"),
    ("package.sub", "there is no module package.sub"),
    (".module", "there is no module .module"),
    ("script.py", "there is no module script.py"),
    ("package.broken.module", "No module named 'nothing_of_the_kind'"),
    ("package.fails", "as it must")])
def test_what_cannot_be_run_is_one_error(package, name, said):
    (package / "script.py").write_text("")
    done = python(package, "-m", "dgl_heta", "run", "-m", name, interpreter=warm.with_dgl())
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert (done.returncode == 2) == ("there is no module" in said)
