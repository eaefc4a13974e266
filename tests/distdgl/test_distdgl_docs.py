"""The documentation lists what dgl-heta patches, and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from dgl_heta.distdgl.activate import every_patch
from dgl_heta.distdgl.versions import RELEASES, release
from dgl_heta.hooks.manager import Plugins

DOCS = Path(__file__).parents[2] / "docs"


def test_every_patched_name_is_documented_and_nothing_else() -> None:
    table = (DOCS / "patched-names.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)`(?: \(DGL ([\d.]+)\))? \|", table, re.MULTILINE)
    assert {only for _, only in rows} == {"", *RELEASES}
    listed = [name for name, only in rows if only in ("", release())]
    patches = every_patch(Plugins(guests=False))
    assert listed == [patch.target.replace(":", ".") for patch in patches]
    assert len(rows) == table.count("\n| `")


def test_the_list_of_refusals_is_that_of_the_table() -> None:
    script = DOCS.parent / "scripts/list_refusals.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
