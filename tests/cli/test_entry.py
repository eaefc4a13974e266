"""What a command makes of its surroundings: a terminal without room, memory that runs out, code
that ends the process."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys

import pytest

from dgl_heta import __main__ as entry
from dgl_heta.system.memory import no_memory
from tests.support.command_line import refused
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize("columns", ["0", "7", "-1", "²", "9" * 5000, "", " 80"])
def test_a_terminal_of_no_width_counts_as_one_of_unknown_width(monkeypatch, columns) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", "0")
    monkeypatch.setattr("dgl_heta.cli.main", lambda: None)
    entry.main()
    assert "COLUMNS" not in os.environ
    assert "LINES" not in os.environ


def test_a_width_that_can_be_is_kept(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("dgl_heta.cli.main", lambda: None)
    entry.main()
    assert os.environ["COLUMNS"] == "120"


def test_nothing_is_left_out_where_columns_are_none() -> None:
    done = subprocess.run([sys.executable, "-m", "dgl_heta", "plugins"], capture_output=True,
                          text=True, timeout=PATIENCE, env={**os.environ, "COLUMNS": "0"})
    assert done.returncode == 0
    assert "rgcn" in done.stdout


NOT_LOADED = "libtorch_cpu.so: failed to map segment from shared object"


def _chained() -> Exception:
    try:
        try:
            raise OSError(NOT_LOADED)
        except OSError:
            raise ImportError("you should not import numpy from its source")  # noqa: B904
    except ImportError as error:
        return error


@pytest.mark.parametrize(("error", "said"), [
    (MemoryError(), "not enough memory"),
    (MemoryError("Unable to allocate 8 EiB"), "not enough memory: Unable to allocate 8 EiB"),
    (ImportError(NOT_LOADED), f"not enough memory: {NOT_LOADED}"),
    (_chained(), f"not enough memory: {NOT_LOADED}"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
     "not enough memory: DefaultCPUAllocator: can't allocate memory: you tried"),
    (OSError(12, "Cannot allocate memory"),
     "not enough memory: [Errno 12] Cannot allocate memory"),
    (ImportError("no module named x"), None), (ValueError("out of memory"), None),
    (ImportError("cannot allocate memory in static TLS block"), None),
])
def test_memory_that_runs_out_is_one_line_however_it_is_told(heta, monkeypatch, error, said
                                                             ) -> None:
    assert no_memory(error) == said
    if said is not None:
        def fail() -> None:
            raise error

        monkeypatch.setattr("dgl_heta.hooks.manager._installed", fail)
        refused(heta("plugins"), f"^error: {re.escape(said)}$", status=1)


@pytest.mark.parametrize("code", ["import sys; sys.exit()", "import sys; sys.exit(0)",
                                  "exit('that is all')", "raise SystemExit(3)"])
def test_a_model_that_leaves_when_it_is_imported_is_named(heta, store, tmp_path, code) -> None:
    model = tmp_path / "leaves.py"
    model.write_text(code)
    refused(heta("train", store, "--model", f"{model}:Net", "--run-dir", tmp_path / "run"),
            r"leaves\.py:Net' cannot be imported: SystemExit.*leaves\.py, line 1")
    assert not (tmp_path / "run").exists()


def test_code_that_leaves_in_the_midst_of_a_command_is_said(heta, store, tmp_path, monkeypatch
                                                            ) -> None:
    (tmp_path / "leaving.py").write_text(
        "import sys\ndef Net(spec, *more):\n    sys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    result = heta("train", store, "--model", "leaving:Net", "--run-dir", tmp_path / "run")
    assert result.status == 1
    assert result.err.splitlines()[-1].startswith(
        "error: code that this command runs, as of a plugin or a model, called sys.exit(0)")
