"""AIFB, MUTAG, BGS and AM as DGL has them, from files that are on disk."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from dgl_heta import GraphSource, InputError, Task
from dgl_heta.tools import MASKS, listing, optional, read_dgl_graph

CLASSES = {"aifb": "AIFBDataset", "mutag": "MUTAGDataset", "bgs": "BGSDataset", "am": "AMDataset"}
TARGETS = {"aifb": "Personen", "mutag": "d", "bgs": "Lexicon/NamedRockUnit", "am": "proxy"}


def load(name: str, path: Path) -> GraphSource:
    """One of the four graphs, with its labels and masks; it has no features.

    Nothing is downloaded and nothing written. In `path`, or in the one directory in it whose name
    begins with `NAME-hetero`, is what DGL's class wrote, `NAME-hetero_dgl_graph.bin`, or what it
    downloaded: triples (`.nt`, `.n3`), `trainingSet.tsv` and `testSet.tsv`. DGL's class also has a
    pickled file beside the graph; it is not opened.

    Raises
    ------
    InputError
        The files are not there or cannot be read; DGL is not installed; for triples, rdflib is not.
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
    found = [path, *sorted(path.glob(f"{name}-hetero*"))] if path.is_dir() else []
    for folder in found:
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
    """A graph in DGL's own format: arrays, names and sizes, nothing that can be run."""
    dgl = optional("dgl", f"reading {file.name}", "dgl")
    try:
        graphs, _ = dgl.load_graphs(str(file))
    except dgl.DGLError:
        raise InputError(f"{file} cannot be read: it is no graph that DGL saved") from None
    if len(graphs) != 1:
        raise InputError(f"{file} holds {len(graphs)} graphs; it should be one")
    return graphs[0]


def _parsed(name: str, folder: Path) -> Any:
    """The graph that DGL's class makes of the triples; it neither downloads nor saves."""
    optional("rdflib", f"reading the triples in {folder}", "rdf", "dgl-heta-hifuse")
    rdf = optional("dgl.data.rdf", f"reading the triples in {folder}", "dgl")
    missing = [file for file in ("trainingSet.tsv", "testSet.tsv") if not (folder / file).exists()]
    if missing or not any(file.suffix in (".nt", ".n3") for file in folder.iterdir()):
        raise InputError(f"{folder} lacks {listing(missing) if missing else 'triples (.nt, .n3)'}")
    here = type(CLASSES[name], (getattr(rdf, CLASSES[name]),), {
        "raw_path": str(folder), "has_cache": lambda self: False,
        "download": lambda self: None, "save": lambda self: None})
    with contextlib.redirect_stdout(sys.stderr):  # it names each file that it reads
        return here(force_reload=True, verbose=False, raw_dir=str(folder.parent))[0]
