"""Two DGL programs on one machine: DGL names their shared memory alike."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.needs("dgl")

OTHER = """
import sys
import dgl
memory = dgl.ndarray.empty_shared_mem(sys.argv[1], True, (4,), "float32")
print("made", flush=True)
sys.stdin.read()
"""
OURS = """
import json, sys
import dgl, dgl_heta
dgl_heta.enable()
try:
    dgl.distributed.kvstore.empty_shared_mem(sys.argv[1], True, (4,), "float32")
    print(json.dumps("made"))
except dgl_heta.HetaError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("config", ["theirs", "ours"])
def test_shared_memory_of_another_program_is_refused(tmp_path: Path, config: str) -> None:
    name = f"node~paper~{secrets.token_hex(4)}-kvdata-"
    with subprocess.Popen([sys.executable, "-c", OTHER, name], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, cwd=tmp_path,
                          env={**os.environ, "DGL_IP_CONFIG": config}) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "made\n"
            done = subprocess.run([sys.executable, "-c", OURS, name], text=True, cwd=tmp_path,
                                  capture_output=True, timeout=PATIENCE, check=False,
                                  env={**os.environ, "DGL_IP_CONFIG": "ours"})
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout.splitlines()[-1])
            if config == "ours":  # a server of one launch makes again what its trainers had
                assert said == "made"
            else:
                assert said.startswith(f"'{name}' in shared memory belongs to another DGL program "
                                       f"on this machine (process {other.pid})")
        finally:
            other.communicate()
            Path(f"/dev/shm/{name}").unlink(missing_ok=True)
