"""Runs a script on GPUs that are pretended; what a GPU would refuse ends it with status 1.

usage: script.py SCRIPT ARGUMENT...
"""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.support.pretended import dgl_graphs, pretend
from tests.support.pretended.counts import COUNTS

del sys.argv[0]
with pretend():
    dgl_graphs.pretend()
    runpy.run_path(sys.argv[0], run_name="__main__")
if COUNTS.problems:
    sys.exit("\n".join(" | ".join(key) for key in COUNTS.problems))
