"""What holds for all tests."""

from __future__ import annotations

import functools
import gc
import inspect
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import hypothesis
import pytest

from tests.support import needs
from tests.support.needs import pytest_runtest_setup  # noqa: F401
from tests.support.warm_workers import warm_workers  # noqa: F401

# A shell without job control starts background jobs with SIGINT ignored, and children inherit that;
# some tests interrupt their children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Seconds on a machine that others use say nothing.
# The same examples each time, so that a change fails for what it changes. HETA_TESTS_RANDOM=1 draws
# others each time, as scripts/campaign/fuzz.py does.
hypothesis.settings.register_profile(
    "patient", deadline=None, derandomize="HETA_TESTS_RANDOM" not in os.environ)
hypothesis.settings.load_profile("patient")

NEED_DGL = ("distdgl", "graphbolt")  # folders whose modules import DGL


def pytest_configure(config: pytest.Config) -> None:
    for what in needs.REQUIRED:
        needs.lacking(what)  # an unknown name ends the run here


def pytest_report_header() -> list[str]:
    return [f"tests that need {what} {'fail' if what in needs.REQUIRED else 'are skipped'}: {why}"
            for what in ("dgl", "hosts", "sshd", "slurm", "postgres")
            if (why := needs.lacking(what))]


class _WithoutDGL(pytest.Module):
    """A module of tests that cannot be imported here."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip("DGL is not installed", allow_module_level=True)
        yield


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start commands as slow; `scripts/test.sh --quick` leaves them out."""
    for item in items:
        functions = [getattr(item, "function", None)]
        for fixtures in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
            functions += [fixture.func for fixture in fixtures]
        if any(_starts_commands(function) for function in functions):
            item.add_marker("slow")


@functools.cache
def _starts_commands(function: Any) -> bool:
    """Return whether a function of the tests names `subprocess`, or calls one that does."""
    pending, seen = [function], set()
    while pending:
        one = inspect.unwrap(pending.pop())
        code = getattr(one, "__code__", None)
        if code is None or code in seen or f"{os.sep}tests{os.sep}" not in code.co_filename:
            continue
        seen.add(code)
        named = set(_names(code))
        if named & {"subprocess", "warm"}:
            return True
        pending += filter(inspect.isroutine, map(one.__globals__.get, named))
    return False


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function uses, and the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what was imported, a million objects."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write how a test ended to the file that HETA_TESTS_RESULTS names, as a line of JSON: what is
    killed later has told what it found (scripts/gpu.sh)."""
    file = os.environ.get("HETA_TESTS_RESULTS")
    if file and "PYTEST_XDIST_WORKER" not in os.environ and (
            report.when == "call" or report.outcome != "passed"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        with open(file, "a", encoding="utf-8") as out:
            out.write(json.dumps({"test": report.nodeid, "outcome": report.outcome, "seconds":
                                  round(report.duration, 2), "reason": reason[-2000:]}) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol() -> None:
    """The same draws of DGL in each test. Its random partition of a small graph fails where a part
    gets no node of a type: about one in fifty draws for the seven of a type of `academic`."""
    if "dgl" in sys.modules:
        sys.modules["dgl"].seed(1)


@pytest.hookimpl
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector
                                ) -> pytest.Module | None:
    if (module_path.parent.name in NEED_DGL and needs.lacking("dgl")
            and "dgl" not in needs.REQUIRED):
        return _WithoutDGL.from_parent(parent, path=module_path)
    return None


@pytest.fixture(autouse=True)
def _default_kernel() -> Iterator[None]:
    """Leave the process with the aggregation kernel that other tests expect."""
    yield
    if kernels := sys.modules.get("dgl_heta.nn.kernels"):
        kernels.use_kernel(kernels.FusedKernel())


@pytest.fixture
def two_threads() -> Iterator[None]:
    """PyTorch's operators divide their work among two threads, in whatever order these come."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
