"""DGL_HETA_CONFIG enables dgl-heta in processes whose command nobody wrote for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SITE = ROOT / "dgl_heta/launch/site"
SHOW = """
import importlib.util, json, os, sys
before = sorted(name for name in sys.modules if name.split(".")[0] in (
    "dgl", "torch", "dgl_heta", "numpy"))
if len(sys.argv) > 1:
    if sys.argv[1] == "asked":  # as packages do that can use DGL, to know whether it is there
        assert importlib.util.find_spec("dgl") and importlib.util.find_spec("dgl.distributed")
    from dgl.distributed import partition_graph
    found = {"enabled": "dgl_heta" in partition_graph.__code__.co_filename}
    if "dgl_heta.distdgl.state" in sys.modules:
        found["method"] = sys.modules["dgl_heta.distdgl.state"].selected().partition.method
else:
    found = {}
print(json.dumps({**found, "before": before, "other": os.environ.get("OTHER_SITE")}))
"""


def python(directory: Path, *words: str, site: bool = True, **variables: str) -> Any:
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(
        [*([str(SITE)] if site else []), str(directory), str(ROOT)])}
    if "DGL_HETA_CONFIG" not in variables:
        environment.pop("DGL_HETA_CONFIG", None)
    return subprocess.run([sys.executable, *words], cwd=directory, text=True, env=environment,
                          capture_output=True, check=False, timeout=PATIENCE)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "heta.toml").write_text('[partition]\nmethod = "meta-shared"\n')
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['OTHER_SITE'] = 'ran'\n")
    return tmp_path


def shown(there: Path, *words: str, **options: Any) -> dict[str, Any]:
    done = python(there, *words, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_directory_is_printed(tmp_path):
    assert python(tmp_path, "-m", "dgl_heta.launch.site").stdout == f"{SITE}\n"


@pytest.mark.parametrize("site", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_nothing_is_imported_before_dgl_is(there, site, named):
    """And who has a sitecustomize of their own keeps it."""
    config = {"DGL_HETA_CONFIG": "heta.toml"} if named else {}
    assert shown(there, "show.py", site=site, **config) == {"before": [], "other": "ran"}


@pytest.mark.parametrize(("named", "site", "asked"), [
    (True, True, "dgl"), (True, True, "asked"), (False, True, "dgl"), (True, False, "dgl")])
def test_dgl_is_patched_when_it_has_been_imported(there, named, site, asked):
    config = {"DGL_HETA_CONFIG": "heta.toml"} if named else {}
    found = shown(there, "show.py", asked, site=site, **config)
    assert found["enabled"] == (named and site)
    assert found["before"] == []
    if named and site:
        assert found["method"] == "meta-shared"


def test_commands_of_dgl_heta_have_their_own_settings(there):
    (there / "mine.toml").write_text('[partition]\nmethod = "relation-random"\n')
    words = ["-m", "dgl_heta", "run", "-c", "mine.toml", "show.py", "dgl"]
    assert shown(there, *words, DGL_HETA_CONFIG="heta.toml")["method"] == "relation-random"


def test_wrong_settings_end_the_process_when_it_imports_dgl(there):
    (there / "heta.toml").write_text("[partition]\nmethd = 'meta'\n")
    done = python(there, "show.py", "dgl", DGL_HETA_CONFIG="heta.toml")
    assert done.returncode == 1
    assert "partition.methd" in done.stderr.splitlines()[-1]
