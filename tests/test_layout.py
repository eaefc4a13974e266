"""The order of the packages: imports go down, never up, and nothing goes around in a ring.

Read from the syntax trees, so imports inside functions count; those for type checkers do not.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What lies in dgl_heta/, bottom first: a package or module imports only from lines above its own.
# What stands in one line does not import each other.
ORDER = """
errors _version
settings
system
hooks
graph
store
planning
sampling
partition
comm
features
cache
nn
models
raf
report
proof
distdgl
graphbolt
training
prediction
launch
cli builtin
tools
__init__ __main__
"""
LEVELS = {name: level for level, line in enumerate(ORDER.split("\n")) for name in line.split()}

# What needs DGL; all else is the core, which runs without it and never imports it.
NEEDS_DGL = (
    "dgl_heta.distdgl",
    "dgl_heta.graphbolt",
    "dgl_heta.graph.readers.dgl_graph",
    "dgl_heta.partition.dgl",
    "dgl_heta.partition.backends.dgl_methods",
)


@dataclass(frozen=True)
class Import:
    """One import: `name` is the module, with the name taken from it if that is a module too."""

    importer: str
    name: str
    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.name}"


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


FILES = {module_name(file): file for file in sorted((ROOT / "dgl_heta").rglob("*.py"))}


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below a node but what is under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from executed(other)
            continue
        yield child
        yield from executed(child)


def imports(file: Path, importer: str) -> Iterator[Import]:
    """What a file imports, anywhere in it, by absolute names."""
    here = importer if file.name == "__init__.py" else importer.rpartition(".")[0]
    for node in executed(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, file, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            words = here.split(".")[:len(here.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*words, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield Import(importer, name if name in FILES else base, file, node.lineno)


INSIDE = [one for name, file in FILES.items() for one in imports(file, name)
          if one.name.split(".")[0] == "dgl_heta"]


def package(module: str) -> str:
    """The package or module of dgl_heta/ that a module lies in: `dgl_heta.raf.wrapper` → raf."""
    return (*module.split("."), "__init__")[1]


def test_every_package_has_its_place_in_the_order() -> None:
    assert {package(name) for name in FILES} == set(LEVELS), (
        "ORDER in this file and dgl_heta/ differ: add what is new where its imports allow it")


def climbs(one: Import) -> bool:
    above, below = package(one.name), package(one.importer)
    return above != below and LEVELS[above] >= LEVELS[below]


def test_no_import_climbs() -> None:
    climbing = [str(one) for one in INSIDE if climbs(one)]
    assert not climbing, (
        "imports that climb (ORDER in this file): move what is shared down, or hand it in from "
        "above as an argument:\n  " + "\n  ".join(climbing))


def test_no_modules_import_each_other_in_a_ring() -> None:
    graph: dict[str, set[str]] = {name: set() for name in FILES}
    for one in INSIDE:
        graph[one.importer].add(one.name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a ring of imports, {' ← '.join(error.args[1])}: put what both ends need "
                    "into a module below them")


# The rooms of the drop-in, bottom first; what stands in one line does not import each other.
ROOMS = """
versions state refusals programs
watchdog store source_trainers
batch_ids
autograd
groups reference
due_merges batch_sources
session
blocks
modules
proof
rows
loading
training
graph
patches
activate
running
__init__
"""
FLOORS = {name: floor for floor, line in enumerate(ROOMS.split("\n")) for name in line.split()}
DROP_IN = "dgl_heta.distdgl."


def typed_imports(file: Path, importer: str) -> Iterator[Import]:
    """All imports of a file, those for type checkers too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield Import(importer, name if name in FILES else node.module, file, node.lineno)


IN_DROP_IN = [one for name, file in FILES.items() if name.startswith(DROP_IN)
              for one in typed_imports(file, name) if one.name.startswith(DROP_IN)]


def room(module: str) -> str:
    """The room or file of the drop-in: `dgl_heta.distdgl.loading.epochs` → loading."""
    return module.split(".")[2]


def test_no_file_name_stands_twice_in_the_package() -> None:
    """Nor in two folders: a name is what a reader looks a file up by."""
    names = Counter(file.name for file in FILES.values())
    twice = sorted(name for name, count in names.items() if count > 1 and name[:2] != "__")
    assert not twice, f"files of one name in dgl_heta/: {', '.join(twice)}; name what each holds"


def test_no_import_of_the_drop_in_climbs() -> None:
    assert {room(f"{name}.__init__") for name in FILES if name.startswith(DROP_IN[:-1])} == (
        set(FLOORS)), "ROOMS in this file and dgl_heta/distdgl/ differ"
    climbing = [str(one) for one in IN_DROP_IN
                if room(one.importer) != room(one.name)
                and FLOORS[room(one.name)] >= FLOORS[room(one.importer)]]
    assert not climbing, ("imports that climb from a room of the drop-in (ROOMS in this file), "
                          "those for types counted:\n  " + "\n  ".join(climbing))


def test_no_files_of_the_drop_in_import_each_other_in_a_ring() -> None:
    graph: dict[str, set[str]] = {}
    for one in IN_DROP_IN:
        graph.setdefault(one.importer, set()).add(one.name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a ring of imports, those for types counted: {' ← '.join(error.args[1])}")


MAKERS = ("list", "dict", "set", "deque", "count", "Counter", "WeakKeyDictionary", "WeakSet",
          "WeakValueDictionary", "WeakTensorKeyDictionary", "defaultdict")


def test_the_drop_in_keeps_its_state_in_one_place() -> None:
    """No `global`, and no container at the top of a module that could be changed, but constants."""
    found = []
    for name, file in FILES.items():
        if not name.startswith(DROP_IN) or name in {
                f"{DROP_IN}{one}" for one in ("state", "refusals", "programs")}:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found += [f"{file.relative_to(ROOT)}:{node.lineno} has `global`"
                  for node in ast.walk(tree) if isinstance(node, ast.Global)]
        for node in tree.body:
            value = getattr(node, "value", None)
            empty = isinstance(value, ast.List | ast.Dict | ast.Set) and not ast.unparse(
                value).strip("[]{}")
            made = isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in MAKERS
            if isinstance(node, ast.Assign | ast.AnnAssign) and (empty or made):
                found.append(f"{file.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    assert not found, ("state outside of dgl_heta/distdgl/state.py: make it a class, and get it by "
                       "state_of:\n  " + "\n  ".join(found))


def test_the_core_does_not_name_dgl() -> None:
    named = [str(one) for name, file in FILES.items()
             if not name.startswith(NEEDS_DGL)
             for one in imports(file, name) if one.name.split(".")[0] in ("dgl", "torchdata")]
    assert not named, ("imports of DGL outside the modules that need it (NEEDS_DGL in this file): "
                       "move them there:\n  " + "\n  ".join(named))


def test_the_core_is_imported_without_dgl() -> None:
    core = [name.removesuffix(".__init__") for name in FILES
            if not name.startswith(NEEDS_DGL) and not name.endswith("__main__")]
    code = ("import sys, importlib\n"
            "sys.modules['dgl'] = sys.modules['torchdata'] = None  # importing them fails\n"
            "for name in sys.argv[1:]: importlib.import_module(name)")
    subprocess.run([sys.executable, "-c", code, *core], check=True, cwd=ROOT)


def test_nothing_is_imported_between_tests_and_scripts() -> None:
    """Nor by the package from either; what several scripts share stands in scripts/bench."""
    sides = {side: list((ROOT / side).rglob("*.py")) for side in ("tests", "scripts", "dgl_heta")}
    names = {side: {side} | {file.stem for file in files if not file.stem.startswith("__")}
             for side, files in sides.items()}
    crossing = []
    for side, others in (("tests", ("scripts",)), ("scripts", ("tests",)),
                         ("dgl_heta", ("tests", "scripts"))):
        for file in sides[side]:
            for one in imports(file, module_name(file)):
                top = one.name.split(".")[0]
                beside = (file.parent / f"{top}.py").exists() or side == top
                if not beside and any(top in names[other] for other in others):
                    crossing.append(str(one))
    assert not crossing, ("imports between tests and scripts; a test runs a script as a program:"
                          "\n  " + "\n  ".join(crossing))
