"""What authors of plugins rely on: found, listed, selected by name, and named when at fault."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import dgl_heta
from dgl_heta._version import __version__
from dgl_heta.errors import InputError
from dgl_heta.hooks import specs as hookspecs
from dgl_heta.hooks.manager import ENTRY_POINT_GROUP, KINDS, LISTENERS, Plugins

ROOT = Path(__file__).resolve().parents[2]
GUEST = "dgl-heta-random-assignment"
HOOKS = {name: value for name, value in vars(hookspecs).items() if name.startswith("dgl_heta_")}

BACKEND = """
    from dgl_heta import MetatreeBackend, hookimpl

    class Backend(MetatreeBackend):
        name = "{name}"
        description = "everything heavy to the last partition"

        def assign(self, weights, parts, seed):
            alone = [[i] for i in range(len(weights) - parts + 1, len(weights))]
            return [*alone, list(range(len(weights) - parts + 1))]

    @hookimpl
    def dgl_heta_partition_backends():
        return [Backend()]
"""

EVERY_KIND = BACKEND.format(name="mine") + """
    import os
    from pathlib import Path

    def used(what):
        with (Path(os.environ["USED"]) / what).open("a") as file:
            file.write("x")

    class Kernel:
        name = "mine"

        def __call__(self, indptr, indices, states, op):
            from dgl_heta.nn.aggregate import TorchKernel

            used("kernel")
            return TorchKernel()(indptr, indices, states, op)

    @hookimpl
    def dgl_heta_kernels():
        return [Kernel()]

    class Model:
        name = "mine"

        def build(self, spec):
            from dgl_heta.models import HGNN, RGCNLayer

            used("model")
            return HGNN(spec, RGCNLayer)

    @hookimpl
    def dgl_heta_models():
        return [Model()]

    class Wrapper:
        name = "mine"

        def plan(self, plan):
            return plan

        def wrap(self, module, world, group):
            from dgl_heta.raf.wrapper import Raf

            used("wrapper")
            return Raf().wrap(module, world, group)

    @hookimpl
    def dgl_heta_module_wrappers():
        return [Wrapper()]

    class Policy:
        name = "mine"

        def select(self, counts, row_bytes, penalties, capacity):
            return {ntype: visits.argsort()[::-1] for ntype, visits in counts.items()}

    @hookimpl
    def dgl_heta_cache_policies():
        return [Policy()]

    class Graph:
        name = "mine"
        description = "papers and their authors"
        options = {"papers": 40}

        def load(self, papers):
            import numpy as np
            from dgl_heta import EdgeArrays, GraphSource, Relation, Task

            used("dataset")
            papers = int(papers)
            paper, author = np.arange(papers), np.arange(papers) % 7
            return GraphSource(
                "mine", {"paper": papers, "author": 7},
                {Relation("author", "writes", "paper"): EdgeArrays(author, paper),
                 Relation("paper", "rev-writes", "author"): EdgeArrays(paper, author),
                 Relation("paper", "cites", "paper"): EdgeArrays(paper, paper[::-1].copy())},
                {"paper": {"label": paper % 2, "train_mask": paper < 30, "val_mask": paper >= 30}},
                Task("paper", 2))

    @hookimpl
    def dgl_heta_datasets():
        return [Graph()]

    @hookimpl
    def dgl_heta_run_started(run_dir, rank, settings):
        used("run_started")

    @hookimpl
    def dgl_heta_epoch_ended(metrics):
        used(f"epoch {metrics['epoch']} ended")

    @hookimpl
    def dgl_heta_run_ended(summary):
        used("run_ended")
"""


def distribution(directory: Path, name: str, code: str, version: str = "1.5",
                 entry: str = "plugin") -> Path:
    """An installed distribution: a module and its metadata in a directory for sys.path."""
    module = name.replace("-", "_")
    directory.mkdir(exist_ok=True)
    (directory / f"{module}.py").write_text(textwrap.dedent(code))
    metadata = directory / f"{module}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[dgl_heta]\n{entry} = {module}\n")
    return directory


def heta(*args: object, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dgl_heta", *map(str, args)], capture_output=True, text=True,
        timeout=120, check=False, cwd=path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)]), **env})


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a throw-away plugin in this process, until the end of the test."""
    names = []

    def put(name: str, code: str, **options: str) -> None:
        distribution(tmp_path, name, code, **options)
        names.append(name.replace("-", "_"))
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    for name in names:
        sys.modules.pop(name, None)


# --- what is found ---------------------------------------------------------------------------


def test_built_ins_are_listed_with_kind_source_and_version():
    found = {(p.kind, p.name): (p.source, p.version)
             for p in Plugins(guests=False).all()}
    for provider in (("partition backend", "meta"), ("partition backend", "metis"),
                     ("module wrapper", "raf"), ("aggregation kernel", "torch"),
                     ("cache policy", "none"), ("model", "rgcn"), ("dataset", "debian")):
        assert found[provider] == ("built in", __version__)
    assert {kind for kind, _ in found} == set(KINDS)


def test_the_guest_is_listed_with_its_distribution_and_version():
    try:
        version = importlib.metadata.version(GUEST)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{GUEST} is not installed (pip install -e plugins/random_assignment)")
    provider = Plugins().providers("partition backend")["meta-random"]
    assert (provider.source, provider.version) == (GUEST, version)
    assert (ROOT / "plugins/random_assignment").samefile(
        Path(inspect.getfile(type(provider.value))).parent)


def test_the_guest_uses_public_names_only():
    for file in (ROOT / "plugins/random_assignment").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name.startswith("dgl_heta.")]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dgl_heta"):
                assert node.module == "dgl_heta"
                assert {a.name for a in node.names} <= set(dgl_heta.__all__)


def test_every_public_name_can_be_imported():
    for name in dgl_heta.__all__:
        assert getattr(dgl_heta, name) is not None


def test_hooks_are_all_providers_or_listeners():
    assert set(HOOKS) == {*KINDS.values(), *LISTENERS}


def test_built_ins_have_no_door_of_their_own():
    entries = [entry for entry in importlib.metadata.distribution("dgl-heta").entry_points
               if entry.group == ENTRY_POINT_GROUP]
    assert [entry.value for entry in entries] == ["dgl_heta.builtin"]
    marked = {value.__name__ for value in vars(entries[0].load()).values()
              if hasattr(value, "dgl_heta_impl")}
    assert marked == set(KINDS.values())


def test_every_hook_is_documented_with_its_arguments():
    text = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
    for name, hook in HOOKS.items():
        written = re.findall(rf"{name}\(([^)]*)\)", text)
        assert written, f"{name} is not in docs/hooks.md with its signature"
        wanted = list(inspect.signature(hook).parameters)
        signatures = [[part.partition(":")[0].strip()
                       for part in re.sub(r"\[.*?\]", "", arguments).split(",") if part]
                      for arguments in written]
        assert wanted in signatures, f"docs/hooks.md writes {name}{signatures}, not {wanted}"


# --- providers from elsewhere ----------------------------------------------------------------


def test_a_run_uses_the_providers_of_a_third_party_distribution(tmp_path):
    path = distribution(tmp_path / "site", "third-party", EVERY_KIND)
    used = tmp_path / "used"
    used.mkdir()
    run = heta("train", "mine:papers=50", "--model", "mine", "--parts", 2, "--json",
               "--run-dir", tmp_path / "run", "--set", "partition.method=mine",
               "--set", "train.kernel=mine", "--set", "train.wrapper=mine",
               "--set", "train.epochs=2", path=path, USED=str(used))
    assert run.returncode == 0, run.stderr
    assert {file.name for file in used.iterdir()} == {
        "dataset", "kernel", "model", "wrapper", "run_started", "epoch 1 ended", "epoch 2 ended",
        "run_ended"}
    assert (used / "run_ended").read_text() == "xx"  # once on each of the two workers
    job = json.loads((tmp_path / "run/job.json").read_text())
    assert job["plan"]["method"] == "mine"
    assert [p["sub_metatrees"] for p in job["plan"]["partitions"]] == [[1], [0]]


def test_providers_of_every_kind_are_found_by_name(install):
    install("third-party-kinds", EVERY_KIND, version="2.0")
    found = Plugins()
    for kind in KINDS:
        assert found.get(kind, "mine").name == "mine"
        provider = found.providers(kind)["mine"]
        assert (provider.source, provider.version) == ("third-party-kinds", "2.0")
    listeners = [p for p in found.all() if p.kind == "listener"]
    assert [(p.name, p.source) for p in listeners] == [("plugin", "third-party-kinds")]


def test_two_plugins_may_name_their_entry_points_alike(install):
    install("one-plugin", BACKEND.format(name="one"))
    install("other-plugin", BACKEND.format(name="other"))
    assert {"one", "other"} <= set(Plugins().providers("partition backend"))


def test_a_distribution_that_is_on_the_path_twice_counts_once(install, tmp_path, monkeypatch):
    install("twice-there", BACKEND.format(name="twice"))
    distribution(tmp_path / "again", "twice-there", BACKEND.format(name="twice"))
    monkeypatch.syspath_prepend(tmp_path / "again")
    assert "twice" in Plugins().providers("partition backend")


def test_unknown_provider_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown partition backend 'metsi'; known are: .*meta.*"
                                         r"did you mean 'metis'"):
        Plugins().get("partition backend", "metsi")


# --- plugins that are wrong ------------------------------------------------------------------


def test_a_conflict_names_both_plugins(tmp_path):
    distribution(tmp_path, "first-plugin", BACKEND.format(name="same"), "1.0", entry="a")
    distribution(tmp_path, "second-plugin", BACKEND.format(name="same"), "2.0", entry="b")
    run = heta("plan", "debian", "--method", "same", path=tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: two plugins provide partition backend 'same': ")
    assert "first-plugin 1.0" in line
    assert "second-plugin 2.0" in line


def test_a_plugin_cannot_take_the_name_of_a_built_in(install):
    install("takes-meta", BACKEND.format(name="meta"))
    with pytest.raises(InputError, match=rf"'meta': built in {__version__} and takes-meta 1\.5"):
        Plugins().get("partition backend", "metis")


HOOK = "from dgl_heta import hookimpl\n@hookimpl\ndef dgl_heta_models():\n    return "


@pytest.mark.parametrize(("code", "message"), [
    ("import no_such_module", "cannot be loaded: .*ModuleNotFoundError.*no_such_module"),
    ("def broken(:", "cannot be loaded: .*SyntaxError"),
    ("1 / 0", "cannot be loaded: .*ZeroDivisionError"),
    (HOOK + "object()", "dgl_heta_models returned <object .*must return a list of providers"),
    (HOOK + "None", "dgl_heta_models returned None"),
    (HOOK + "(1 for _ in ())", "dgl_heta_models returned <generator"),
    (HOOK + "[object()]", "each with a name"),
    (HOOK + "[type('P', (), {'name': None})]", "each with a name"),
    (HOOK + "[type('P', (), {'name': ''})]", "each with a name"),
    (HOOK + "1 / 0", "dgl_heta_models failed with ZeroDivisionError: division by zero"),
    (HOOK.replace("models", "modles") + "[]", "unknown hook 'dgl_heta_modles'.*dgl_heta_models"),
    (HOOK.replace("models()", "models(spec)") + "[]", "spec.*not be found|spec.*hookspec"),
])
def test_a_broken_plugin_is_one_error_with_its_name(install, request, code, message):
    name = f"broken-plugin-{request.node.callspec.indices['code']}"
    install(name, code)
    with pytest.raises(InputError, match=f"plugin {name} 1.5") as error:
        Plugins().providers("model")
    assert re.search(message, str(error.value)), str(error.value)


def test_a_broken_plugin_is_one_line_on_the_command_line(tmp_path):
    run = heta("datasets", path=distribution(tmp_path, "broken-one", "raise OSError('no\\nway')"))
    assert (run.returncode, run.stdout) == (2, "")
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: plugin broken-one 1.5 cannot be loaded")


# --- around ----------------------------------------------------------------------------------


def test_trace_shows_hook_calls_with_results_on_stderr(tmp_path):
    distribution(tmp_path, "traced-plugin", BACKEND.format(name="traced"))
    args = ("plan", "debian", "--method", "traced", "--json")
    run = heta(*args, path=tmp_path, DGL_HETA_TRACE="1")
    assert run.returncode == 0
    assert json.loads(run.stdout)["method"] == "traced"
    assert "dgl_heta_partition_backends [hook]" in run.stderr
    assert re.search(r"finish dgl_heta_partition_backends --> .*traced_plugin\.Backend", run.stderr)
    assert "dgl_heta_datasets [hook]" in run.stderr
    assert heta(*args, path=tmp_path, DGL_HETA_TRACE="0").stderr == ""


def test_core_imports_without_dgl_and_planning_without_torch():
    code = """
        import importlib, pkgutil, sys
        import dgl_heta, dgl_heta.cli, dgl_heta.planning.plan, dgl_heta.store
        import dgl_heta.partition.inputs, dgl_heta.report.plan_terminal, dgl_heta.planning.cost
        import dgl_heta.graph.readers, dgl_heta.graph.datasets.synthetic
        from dgl_heta.hooks.manager import plugins
        plugins().get("partition backend", "meta"), plugins().get("dataset", "debian")
        assert "torch" not in sys.modules, "planning imports torch"
        for module in pkgutil.walk_packages(dgl_heta.__path__, "dgl_heta."):
            adapter = module.name.startswith(("dgl_heta.distdgl.", "dgl_heta.graphbolt"))
            if not module.name.endswith("__main__") and not adapter:
                importlib.import_module(module.name)
        plugins().all()
        assert "dgl" not in sys.modules, "the core imports dgl"
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True,
                         text=True, timeout=120, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
