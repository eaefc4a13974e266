"""Runs a benchmark on one GPU that is pretended, whose counts it finds as PRETENDED.

usage: bench.py SCRIPT ARGUMENT...
"""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.support.pretended import pretend
from tests.support.pretended.counts import COUNTS

del sys.argv[0]
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
with pretend():
    runpy.run_path(sys.argv[0], {"PRETENDED": COUNTS}, "__main__")
