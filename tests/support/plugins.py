"""Throw-away plugins for tests: distributions in a directory, and commands that see them."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

from tests.support import warm
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

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
    import dgl_heta

    def used(what):
        with (Path(os.environ["USED"]) / what).open("a") as file:
            file.write("x")

    @hookimpl
    def dgl_heta_kernels():
        from dgl_heta.nn import BaseKernel

        class Kernel(BaseKernel):
            name = "mine"

            def reduce(self, edges, states, op):
                used("kernel")
                return super().reduce(edges, states, op)

        return [Kernel()]

    class Model(dgl_heta.ModelProvider):
        name = "mine"

        def build(self, spec):
            from dgl_heta.models import HGNN, RGCNLayer

            used("model")
            return HGNN(spec, RGCNLayer)

    @hookimpl
    def dgl_heta_models():
        return [Model()]

    class Wrapper(dgl_heta.ModuleWrapper):
        name = "mine"

        def plan(self, plan):
            return plan

        def wrap(self, module, context):
            from dgl_heta.raf.wrapper import Raf

            used("wrapper")
            return Raf().wrap(module, context)

    @hookimpl
    def dgl_heta_module_wrappers():
        return [Wrapper()]

    class Cutter(dgl_heta.Cutter):
        name, description = "mine", "as planned"

        def cut(self, source, relation, parts):
            return None

    @hookimpl
    def dgl_heta_cutters():
        return [Cutter()]

    class Policy(dgl_heta.CachePolicy):
        name = "mine"

        def select(self, counts, row_bytes, penalties, capacity):
            return {ntype: visits.argsort()[::-1] for ntype, visits in counts.items()}

    @hookimpl
    def dgl_heta_cache_policies():
        return [Policy()]

    class Graph(dgl_heta.Dataset):
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

    class Source(dgl_heta.BatchSource):
        name = "mine"

        def batches(self, steps, sample, in_order):
            return map(sample, range(steps))

    @hookimpl
    def dgl_heta_batch_sources():
        return [Source()]

    class Replaced(dgl_heta.Patches):
        name = "mine"

        def patches(self):
            return []

    @hookimpl
    def dgl_heta_patches():
        return [Replaced()]

    class Log(dgl_heta.Logger):
        name, description = "mine", "nothing"

        def open(self, run_dir, settings, done):
            raise dgl_heta.InputError("there is no such place")

    @hookimpl
    def dgl_heta_loggers():
        return [Log()]

    class Saved(dgl_heta.Reader):
        name, description = "mine", "nothing"

        def matches(self, path):
            return False

        def read(self, path):
            return None

    @hookimpl
    def dgl_heta_readers():
        return [Saved()]

    class Inputs(dgl_heta.ModelInputs):
        name = "mine"

        def open(self, context):
            raise dgl_heta.InputError("there are none")

    @hookimpl
    def dgl_heta_model_inputs():
        return [Inputs()]

    class Program(dgl_heta.Program):
        name, modules = "mine", {}

    @hookimpl
    def dgl_heta_programs():
        return [Program()]

    class Command(dgl_heta.Command):
        name, description = "mine", "says so"

        def command(self):
            import typer

            app = typer.Typer()

            @app.command()
            def say(number: int):
                if number > 9:
                    raise dgl_heta.InputError(f"number is {number}; it must be 9 or less")
                print("mine", number)

            return app

    @hookimpl
    def dgl_heta_commands():
        return [Command()]

    class Own:
        name, settings = "mine", None

    @hookimpl
    def dgl_heta_settings():
        return [Own()]

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


def in_tree(site: Path, plugin: str) -> str:
    """PYTHONPATH with a plugin of plugins/, as it is there, as one that is installed; `site` is a
    directory that does not exist yet."""
    metadata = site / f"dgl_heta_{plugin}-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: dgl-heta-{plugin}\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(f"[dgl_heta]\n{plugin} = dgl_heta_{plugin}\n")
    return os.pathsep.join([str(ROOT), str(ROOT / "plugins" / plugin), str(site)])


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
        [warm.python(), "-m", "dgl_heta", *map(str, args)], capture_output=True, text=True,
        timeout=PATIENCE, check=False, cwd=path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)]), **env})


def guest(name: str) -> str:
    """The code of one of the small plugins in tests/support/guests."""
    return (ROOT / f"tests/support/guests/{name}.py").read_text(encoding="utf-8")
