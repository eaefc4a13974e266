"""AIFB, MUTAG, BGS and AM as DGL has them, from files that are on disk."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from dgl_heta import GraphSource, InputError, Task
from dgl_heta.tools import MASKS, listing, optional, read_dgl_graph

CLASSES = {"aifb": "AIFBDataset", "mutag": "MUTAGDataset", "bgs": "BGSDataset", "am": "AMDataset"}
TARGETS = {"aifb": "Personen", "mutag": "d", "bgs": "Lexicon/NamedRockUnit", "am": "proxy"}

TRIPLES_BYTES, SPLIT_BYTES = 2 << 30, 32 << 20
"""The most bytes of all triples together, and of a list of nodes. AM, the largest of the four, has
some six million triples; rdflib takes several times their size in memory."""


def load(name: str, path: Path) -> GraphSource:
    """One of the four graphs, with its labels and masks; it has no features.

    Nothing is downloaded and nothing written. In `path`, or in the one directory in it whose name
    begins with `NAME-hetero`, is what DGL's class wrote, `NAME-hetero_dgl_graph.bin`, or what it
    downloaded: triples (`.nt`, `.n3`), `trainingSet.tsv` and `testSet.tsv`. DGL's class also has a
    pickled file beside the graph; it is not opened.

    Raises
    ------
    InputError
        The files are not there, are too large or cannot be read; DGL is not installed; for triples,
        rdflib is not.
    """
    folder = _folder(name, path.expanduser())
    saved = folder / f"{name}-hetero_dgl_graph.bin"
    graph = _saved(saved) if saved.exists() else _parsed(name, folder)
    target = TARGETS[name]
    if target not in graph.ntypes or "label" not in _label(graph, target):
        raise InputError(f"{folder} has no node type '{target}' with labels, as {name} has")
    graph.nodes[target].data.pop("labels", None)  # once more, by its earlier name
    source = read_dgl_graph(graph, name, target)
    arrays = {key: source.node_arrays[target][key] for key in ("label", *MASKS)
              if key in source.node_arrays[target]}
    return GraphSource(name, source.node_counts, source.edges, {target: arrays},
                       Task(target, int(arrays["label"].max()) + 1), {"origin": str(folder)})


def _folder(name: str, path: Path) -> Path:
    folders = [path, *sorted(path.glob(f"{name}-hetero*"))] if path.is_dir() else []
    for folder in folders:
        if (folder / f"{name}-hetero_dgl_graph.bin").exists() or (
                folder / "trainingSet.tsv").exists():
            return folder
    raise InputError(
        f"{path} holds no {name}: neither {name}-hetero_dgl_graph.bin, as dgl.data."
        f"{CLASSES[name]} saves it, nor trainingSet.tsv with triples; say where it is by "
        f"{name}:path=DIR (nothing is downloaded)")


def _label(graph: Any, target: str) -> Any:
    data = graph.nodes[target].data
    if "label" not in data and "labels" in data:  # as earlier versions of DGL saved it
        data["label"] = data["labels"]
    return data


def _saved(file: Path) -> Any:
    """A graph in DGL's own format: arrays, names and sizes, nothing that can be run.

    DGL's C++ ends the process where sizes in the file are wrong, so another one reads it first.
    """
    dgl = optional("dgl", f"reading {file.name}", "dgl")
    _tried(file)
    try:
        graphs, _ = dgl.load_graphs(str(file))
    except dgl.DGLError:
        raise InputError(f"{file} cannot be read: it is no graph that DGL saved") from None
    if len(graphs) != 1:
        raise InputError(f"{file} holds {len(graphs)} graphs; it should be one")
    return graphs[0]


_TRY = """
import resource, sys
import dgl
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (size, size))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
dgl.load_graphs(sys.argv[1])
"""
_READING_S = 600


def _tried(file: Path) -> None:
    """Read a file in another process, with memory in proportion to its size."""
    most = 20 * file.stat().st_size + (1 << 30)
    try:
        tried = subprocess.run([sys.executable, "-c", _TRY, str(file), str(most)], check=False,
                               stdin=subprocess.DEVNULL, capture_output=True, timeout=_READING_S)
    except subprocess.TimeoutExpired:
        raise InputError(f"{file} was not read within {_READING_S} s") from None
    if tried.returncode:
        raise InputError(f"{file} cannot be read: it is no graph that DGL saved, or damaged")


def _parsed(name: str, folder: Path) -> Any:
    """The graph that DGL's class makes of the triples; it neither downloads nor saves."""
    _check_sizes(folder)
    optional("rdflib", f"reading the triples in {folder}", "rdf", "dgl-heta-hifuse")
    rdf = optional("dgl.data.rdf", f"reading the triples in {folder}", "dgl")
    missing = [file for file in ("trainingSet.tsv", "testSet.tsv") if not (folder / file).exists()]
    if missing or not any(file.suffix in (".nt", ".n3") for file in folder.iterdir()):
        raise InputError(f"{folder} lacks {listing(missing) if missing else 'triples (.nt, .n3)'}")
    here = type(CLASSES[name], (getattr(rdf, CLASSES[name]),), {
        "raw_path": str(folder), "has_cache": lambda self: False,
        "download": lambda self: None, "save": lambda self: None})
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it names each file that it reads
            return here(force_reload=True, verbose=False, raw_dir=str(folder.parent))[0]
    except Exception as error:  # rdflib and DGL's class raise almost anything at what is damaged
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"the triples and lists of nodes in {folder} cannot be read as {name}: "
                         f"{type(error).__name__}{': ' * bool(reason)}{reason}") from None


def _check_sizes(folder: Path) -> None:
    """Refuse what is larger than a graph of this kind, and what is no file. Files of triples are
    those that DGL's class takes for such, by the end of their names."""
    total = 0
    for file in sorted(folder.iterdir()):
        triples = file.name.endswith(("nt", "n3"))
        if not triples and file.name not in ("trainingSet.tsv", "testSet.tsv"):
            continue
        if not file.is_file():
            raise InputError(f"{file} is named as a file that is read, but is none; move it away")
        size = file.stat().st_size
        total += size * triples
        if not triples and size > SPLIT_BYTES:
            raise InputError(f"{file} has {size:,} bytes; a list of nodes has "
                             f"{SPLIT_BYTES >> 20} MiB at most")
        if total > TRIPLES_BYTES:
            raise InputError(f"{file} has {size:,} bytes; all triples of a graph together have "
                             f"{TRIPLES_BYTES >> 30} GiB at most")
