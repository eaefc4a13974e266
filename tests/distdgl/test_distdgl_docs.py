"""The documentation lists what dgl-heta patches."""

from __future__ import annotations

from pathlib import Path

from dgl_heta.distdgl.patches import PATCHES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_patched_name_is_documented_and_nothing_else() -> None:
    table = (DOCS / "patched-names.md").read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert listed == [patch.target.replace(":", ".") for patch in PATCHES]
