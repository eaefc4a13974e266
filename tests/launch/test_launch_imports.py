"""What a launch needs of its surroundings."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from dgl_heta.launch.connection import RECEIVE, agent_text
from tests.support.waiting import PATIENCE


def test_neither_torch_nor_dgl_is_imported():
    code = ("import sys, dgl_heta.cli.launch, dgl_heta.cli.launch_output, "
            "dgl_heta.launch.hosts\n"
            "print([m for m in ('torch', 'dgl') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_agent_needs_nothing_but_python():
    done = subprocess.run([shutil.which("python3") or sys.executable, "-I", "-S", "-c", RECEIVE],
                          input=agent_text().decode(), cwd="/", capture_output=True, text=True,
                          check=True, timeout=PATIENCE)
    assert [json.loads(x)["event"] for x in done.stdout.splitlines()] == ["hello", "ended"]
